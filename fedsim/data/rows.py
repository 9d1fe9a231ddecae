"""Read the rows of a source: the built-in plays, or any source that `datasets` reads."""

from __future__ import annotations

import csv
import glob
import importlib
import logging
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, repeat
from pathlib import Path
from typing import Any

from fedsim.data.config import DataConfig
from fedsim.data.preparation.prepare import needed_columns
from fedsim.data.sources.conversations import RowError, answer_text, messages_text, whole_text
from fedsim.data.sources.json_files import json_records
from fedsim.data.sources.local_files import ON_DISK, load_saved, local_files, open_text, unusable
from fedsim.data.sources.names import SPEAKER, owner_names, user_name
from fedsim.data.sources.records import NO_COLUMNS, RawRecord
from fedsim.data.sources.shakespeare import BUILT_IN
from fedsim.errors import ConfigError, kind_of
from fedsim.utils.files import check_no_pointers

Batch = Mapping[str, list[Any]]

_NO_HUB = "without the hub, give data.source a folder of data files, or one of save_to_disk"
_QUOTED = re.compile(r"(['\"]).*\1", re.DOTALL)
_NUMBER = re.compile(r"\s*[+-]?[\d.]+(e[+-]?\d+)?\s*", re.IGNORECASE)
_BATCH = 1000
_SHOWN = 500  # maximum characters of column names in a message


def _columns_of(config: DataConfig) -> dict[str, str]:
    """Return the columns to read, each with the config key that names it."""
    columns = {
        config.users_from: "user_column",
        config.text_from: f"{config.text_kind}_column",
        config.completion_column: "completion_column",
        config.owners_column: "owners_column",
    }
    given = {column: key for column, key in columns.items() if column is not None}
    return needed_columns(config.preparation) | given


def rows(config: DataConfig) -> Iterator[RawRecord]:
    """Yield user, text, the columns of preparation steps and the owners, in the source's order.

    A conversation is one JSON text (`fedsim.data.sources.conversations`). Users are names of
    `fedsim.data.sources.names`; an empty name is null.

    Raises:
        ConfigError: (while iterating) the source is missing, unreadable or empty; or a column is
            missing, has only nulls, or has values of the wrong type.
    """
    extra, user_column = needed_columns(config.preparation), config.users_from
    if config.source in BUILT_IN:
        owners = {} if config.owners_column is None else {config.owners_column: "owners_column"}
        for column, field in {**extra, **owners}.items():
            raise ConfigError(f"data.{field}: {config.source} has no column {column!r}")
        yield from (RawRecord(user, text) for user, text in BUILT_IN[config.source]())
        return
    any_user, num_rows, only_numbers = False, 0, config.text_kind == "text"
    key = "owners_column" if user_column == config.owners_column else "user_column"
    field = f"data.{key} = {user_column!r}"
    for batch in _batches(config.source, _columns_of(config)):
        named = list(islice(_owners(batch, config), len(batch[user_column])))
        if user_column == config.owners_column:
            users = [each[0] if each else None for each in named]
        else:
            users = [user_name(value, field) for value in batch[user_column]]
        any_user = any_user or any(user is not None for user in users)
        texts = _texts(batch, config, num_rows)
        only_numbers = only_numbers and all(map(_NUMBER.fullmatch, filter(None, texts)))
        num_rows += len(users)
        parts = zip(users, texts, _columns(batch, extra), named, strict=False)
        yield from map(RawRecord._make, parts)
    if not num_rows:
        raise unusable(config.source, "holds no rows")
    if not any_user:
        raise ConfigError(
            f"{field}: all values are null; name the column with the user of each row"
        )
    if only_numbers:
        raise ConfigError(
            f"data.text_column = {config.text_column!r}: holds only numbers; wanted: strings"
        )


def _columns(batch: Batch, names: Mapping[str, str]) -> Iterable[Mapping[str, Any]]:
    if not names:
        return repeat(NO_COLUMNS)
    values = zip(*(batch[name] for name in names), strict=True)
    return (dict(zip(names, row, strict=True)) for row in values)


def _owners(batch: Batch, config: DataConfig) -> Iterable[tuple[str, ...] | None]:
    if config.owners_column is None:
        return repeat(())
    field = f"data.owners_column = {config.owners_column!r}"
    cells = batch[config.owners_column]
    return (owner_names(cell, field, config.owners_separator) for cell in cells)


def _batches(source: str, needed: Mapping[str, str]) -> Iterator[Batch]:
    """Yield batches of rows, as mappings from each needed column to its values."""
    local = local_files(source)
    kind, files = local or ("hub", [])
    try:
        check_no_pointers(files)
        if kind in ("csv", "json"):
            yield from _text_batches(kind, needed, files)
        else:
            yield from _dataset_batches(source, needed, local)
    except ConfigError:
        raise
    except Exception as error:  # each loader raises its own types; users get a ConfigError
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        if local is None:
            reason = f"{reason}; {_NO_HUB}"
        elif kind in ("parquet", "arrow"):  # pyarrow quotes the value that it cannot take
            reason = _QUOTED.sub("…", reason)
        raise unusable(source, reason) from error


def _text_batches(kind: str, needed: Mapping[str, str], files: list[Path]) -> Iterator[Batch]:
    for path in files:
        try:
            yield from (_csv_batches if kind == "csv" else _json_batches)(needed, path)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path.name} is not UTF-8; convert it to UTF-8, with iconv for example"
            ) from error


def _csv_batches(needed: Mapping[str, str], path: Path) -> Iterator[Batch]:
    """Read CSV, with every cell as a string.

    Type inference would turn "007" into 7, "7" beside an empty cell into 7.0, and "NA" into null.
    """
    lines = _csv_rows(path, _delimiter(path, needed))
    columns = next(lines, None)
    if columns is None:
        return
    _check_columns(needed, columns, "; the first line must name them, separated by commas")
    if twice := next((name for name in needed if columns.count(name) > 1), None):
        raise ConfigError(
            f"data.{needed[twice]} = {twice!r}: {path.name} has {columns.count(twice)} columns of "
            "this name; rename all but one"
        )
    places = {name: columns.index(name) for name in needed}
    while rows := list(islice(lines, _BATCH)):
        yield {name: [row[place] or None for row in rows] for name, place in places.items()}


def _delimiter(path: Path, needed: Mapping[str, str]) -> str:
    """Return the delimiter that gives the needed columns in the header; by default a comma."""
    with open_text(path, newline="") as file:
        header = next(filter(str.strip, file), "")
    for mark in ",;\t|":
        if needed.keys() <= set(next(csv.reader([header], delimiter=mark), [])):
            return mark
    return ","


def _csv_rows(path: Path, delimiter: str) -> Iterator[list[str]]:
    """Yield the header and the rows of a CSV, without empty lines.

    Strict parsing matters: a part of a text with wrong quotes could be read as the next cell, for
    example as a user's name.

    Raises:
        ValueError: a row has more or fewer cells than the header, or quotes do not end at the end
            of a cell. The message contains no text of a cell.
    """
    csv.field_size_limit(sys.maxsize)  # a text can be a book
    width = None
    with open_text(path, newline="") as file:
        reader = csv.reader(file, strict=True, delimiter=delimiter)
        try:
            for row in filter(None, reader):
                width = width or len(row)
                if len(row) != width:
                    raise csv.Error(
                        f"has {len(row)} cells, but the header {width}; put texts with commas or "
                        "line breaks in quotes, and write empty cells too"
                    )
                yield row
        except csv.Error as error:
            raise ValueError(
                f"{path.name}: line {reader.line_num}: {error}; write a quote in a text twice (in "
                """Spark by .option("escape", '"'))"""
            ) from error


def _json_batches(needed: Mapping[str, str], path: Path) -> Iterator[Batch]:
    """Read JSON, with unchanged values.

    `datasets` would infer one type per column: one user's row could turn the names of others into
    dates, or large integers into rounded floats.
    """
    columns: dict[str, None] = {}  # a column is null in rows before its first value
    for record in json_records(path, needed):
        columns.update(dict.fromkeys(record))
        if needed.keys() <= columns.keys():
            break
    if columns:
        _check_columns(needed, list(columns), f"; file: {path.name}")
    records = json_records(path, needed)
    while batch := list(islice(records, _BATCH)):
        yield {name: [record.get(name) for record in batch] for name in needed}


def _dataset_batches(
    source: str, needed: Mapping[str, str], local: tuple[str, list[Path]] | None
) -> Iterator[Batch]:
    with tempfile.TemporaryDirectory() as scratch:
        for dataset in _load(source, local, scratch):
            if local is None and dataset.features is None:
                raise unusable(
                    source,
                    "has no column types, and `datasets` would guess them from the rows; give "
                    "data.source a folder of its files",
                )
            first = next(iter(dataset), None)
            if first is None:
                continue
            _check_columns(needed, dataset.column_names or list(first))
            features = dataset.features or {}
            for batch in dataset.iter(batch_size=_BATCH):
                yield {name: _named(batch[name], features.get(name)) for name in needed}


def _named(cells: list[Any], feature: Any) -> list[Any]:  # noqa: ANN401  (of an untyped module)
    """Replace class numbers by class names; -1 (no class) becomes None.

    The number of a class may change when a class is added.
    """
    feature = getattr(feature, "feature", None) or feature
    if not hasattr(feature, "int2str"):
        return cells

    def name(cell: Any) -> object:  # noqa: ANN401
        if isinstance(cell, list):
            return [name(each) for each in cell]
        return None if cell is None or cell < 0 else feature.names[cell]

    return [name(cell) for cell in cells]


def _load(
    source: str, local: tuple[str, list[Path]] | None, scratch: str
) -> Iterator[Any]:  # of an untyped module
    """Yield datasets, streaming or memory-mapped; `scratch` receives lock files.

    Files are loaded one by one: otherwise `datasets` applies the types and class names of the first
    file to all, which could change users' names.
    """
    datasets = _datasets()
    options = {"split": "train", "streaming": True, "cache_dir": scratch}
    if local is None:
        yield datasets.load_dataset(source, **options)
        return
    loader, files = local
    if loader == ON_DISK:
        yield load_saved(datasets, Path(source).expanduser())
        return
    for path in files:
        if path.stat().st_size and not (loader == "parquet" and _no_rows(path)):
            file = glob.escape(str(path.resolve()))
            yield datasets.load_dataset(loader, data_files=[file], **options)


def _no_rows(path: Path) -> bool:
    """Return whether a Parquet file has no rows; `datasets` would raise an error for it."""
    rows: int = importlib.import_module("pyarrow.parquet").read_metadata(path).num_rows
    return rows == 0


def _check_columns(needed: Mapping[str, str], columns: list[str], hint: str = "") -> None:
    fields = needed.values()
    if "owners_column" in fields and "user_column" not in fields and SPEAKER in columns:
        raise ConfigError(
            f"data.user_column: not given, and there is a column {SPEAKER!r} besides the owners; "
            f"set data.user_column = {SPEAKER!r} if that person owns the text too, or remove the "
            "column"
        )
    for name, field in sorted(needed.items(), key=lambda item: item[1], reverse=True):
        if name not in columns:
            known = ", ".join(map(str, columns))
            known = f"{known[:_SHOWN]}…" if len(known) > _SHOWN else known
            raise ConfigError(f"data.{field} = {name!r}: no such column; columns: {known}{hint}")


def _datasets() -> Any:  # noqa: ANN401  (an untyped module)
    """Import `datasets` without its log output; only when needed, as it takes seconds."""
    module = importlib.import_module("datasets")
    module.disable_progress_bars()
    module.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # do not report local files to a server
    for name in ("datasets", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return module


def _texts(batch: Batch, config: DataConfig, before: int) -> list[str | None]:
    read: Callable[..., str | None] = messages_text
    column, kind = config.text_from, config.text_kind
    cells, fields = [batch[column]], [f"data.{kind}_column = {column!r}"]
    if kind == "text":
        read = _text
    elif config.completion_column is not None:
        read = answer_text
        cells.append(batch[config.completion_column])
        fields.append(f"data.completion_column = {config.completion_column!r}")
    found = []
    for row, cell in enumerate(zip(*cells, strict=True), start=before + 1):
        try:
            found.append(read(*cell, *fields))
        except RowError as error:
            if config.drop_refused:
                found.append(None)
                continue
            field, what, wanted = error.args
            raise ConfigError(f"{field}: row {row}: {what}; wanted: {wanted}") from None
    return found


def _text(value: object, field: str) -> str | None:
    if value is None or value != value:  # noqa: PLR0124  (NaN)
        return None
    text = _joined(value) if isinstance(value, list) else value
    if isinstance(text, str):
        return whole_text(text)
    raise RowError(field, f"holds {kind_of(value)}", "strings")


def _joined(parts: list[Any]) -> str | None:
    """Join the parts of a text in a chat export: strings and objects such as {"text": …}."""
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    known = [text for text in texts if isinstance(text, str)]
    return "".join(known) if texts != parts and len(known) == len(parts) else None

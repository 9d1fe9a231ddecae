"""Rows of a source: the built-in plays, or anything that `datasets` reads."""

from __future__ import annotations

import csv
import glob
import importlib
import json
import logging
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fedsim.data.sources.conversations import RowError, answer_text, messages_text, whole_text
from fedsim.data.sources.local_files import ON_DISK, load_saved, local_files, unusable
from fedsim.data.sources.names import owner_names, user_name
from fedsim.data.sources.records import NO_COLUMNS, RawRecord
from fedsim.data.sources.shakespeare import BUILT_IN
from fedsim.errors import ConfigError, kind_of
from fedsim.utils.json_text import parse_json

log = logging.getLogger("fedsim")

Batch = Mapping[str, list[Any]]

_NO_HUB = (
    "to do without the hub, save the dataset where there is a network "
    "(datasets.load_dataset(…).save_to_disk(FOLDER), or its files) and give data.source that path"
)
_QUOTED = re.compile(r"(['\"]).*\1", re.DOTALL)
_BATCH = 1000
_FEW_BITS = {"float16": np.float16, "float32": np.float32}  # of which Python makes floats of 64
_SHOWN = 500  # characters of the columns' names in a message


class SourceSpec(NamedTuple):
    """A source and its columns.

    Attributes:
        source: a path, a hub id, or one of `BUILT_IN`.
        user_column: the user of the text.
        text_column: the text, the messages or the prompt.
        kind: what that column holds; its key in the config is `kind` + "_column".
        completion_column: the completion of a prompt.
        owners_column: who owns the text beside its user.
        owners_separator: what stands between their names where they are one string.
    """

    source: str
    user_column: str
    text_column: str
    kind: Literal["text", "messages", "prompt"] = "text"
    completion_column: str | None = None
    owners_column: str | None = None
    owners_separator: str | None = None

    @property
    def columns(self) -> dict[str, str]:
        """Column to its key in the config, of all columns."""
        columns = {self.user_column: "user_column", self.text_column: f"{self.kind}_column"}
        others = {
            self.completion_column: "completion_column",
            self.owners_column: "owners_column",
        }
        return columns | {column: key for column, key in others.items() if column is not None}


def texts(source: str, column: str) -> Iterator[str]:
    """Yield the texts of a source that has no users, without nulls; errors as of `rows`."""
    spec = SourceSpec(source, user_column=column, text_column=column)
    yield from (row.text for row in rows(spec, {}) if row.text is not None)


def rows(spec: SourceSpec, extra: Mapping[str, str]) -> Iterator[RawRecord]:
    """Yield user, text, the extra columns and the owners, in the source's order.

    A conversation is one JSON text: see `fedsim.data.sources.conversations`. Users are names
    as of `fedsim.data.sources.names`: an empty one is null.

    Args:
        spec: the source and its columns.
        extra: columns, each with the name of the field that asks for it.

    Raises:
        ConfigError: (while iterating) a source that is missing, unreadable or empty; a column that
            is missing, is null throughout or holds something other than names (texts).
    """
    if spec.source in BUILT_IN:
        wanted = dict(extra)
        if spec.owners_column is not None:
            wanted[spec.owners_column] = "owners_column"
        for column, field in wanted.items():
            raise ConfigError(f"data.{field}: {spec.source} has no column {column!r}")
        yield from (RawRecord(user, text) for user, text in BUILT_IN[spec.source]())
        return
    any_user, num_rows = False, 0
    with tempfile.TemporaryDirectory() as scratch:
        for batch in _batches(spec, extra, scratch):
            field = f"data.user_column = {spec.user_column!r}"
            users = [user_name(value, field) for value in batch[spec.user_column]]
            any_user = any_user or any(user is not None for user in users)
            columns = _columns(batch, extra, len(users))
            parts = zip(
                users, _texts(batch, spec, num_rows), columns, _owners(batch, spec), strict=False
            )
            num_rows += len(users)
            yield from map(RawRecord._make, parts)
    if not num_rows:
        raise unusable(spec.source, "holds no rows")
    if not any_user:
        raise ConfigError(f"data.user_column = {spec.user_column!r}: all values are null")


def _columns(batch: Batch, names: Mapping[str, str], height: int) -> Iterator[Mapping[str, Any]]:
    if not names:
        return repeat(NO_COLUMNS, height)
    values = zip(*(batch[name] for name in names), strict=True)
    return (dict(zip(names, row, strict=True)) for row in values)


def _owners(batch: Batch, spec: SourceSpec) -> Iterator[tuple[str, ...] | None]:
    if spec.owners_column is None:
        return repeat(())
    field = f"data.owners_column = {spec.owners_column!r}"
    cells = batch[spec.owners_column]
    return (owner_names(cell, field, spec.owners_separator) for cell in cells)


def _batches(spec: SourceSpec, extra: Mapping[str, str], scratch: str) -> Iterator[Batch]:
    """Yield column name to values, all columns present, a batch of rows at a time."""
    local = local_files(spec.source)
    needed = {**extra, **spec.columns}
    try:
        if local is not None and local[0] == "csv":
            yield from _csv_batches(spec, needed, local[1])
        elif local is not None and local[0] == "json":
            yield from _json_batches(needed, local[1])
        else:
            yield from _dataset_batches(spec.source, needed, local, scratch)
    except ConfigError:
        raise
    except Exception as error:  # each loader raises its own kinds, and a reader needs one
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        if local is None:
            reason = f"{reason}; {_NO_HUB}"
        elif "codec can't decode" in reason:
            reason = f"{_undecodable(local[1])}; convert it to UTF-8, with iconv for example"
        elif local[0] in ("parquet", "arrow"):  # pyarrow quotes the value that it cannot take
            reason = _QUOTED.sub("…", reason)
        raise unusable(spec.source, reason) from error


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


def _csv_batches(spec: SourceSpec, needed: Mapping[str, str], files: list[Path]) -> Iterator[Batch]:
    """Read CSV, every cell as a string.

    Left to infer, pandas makes 7 of "007", 7.0 of "7" beside an empty cell, and null of "NA".
    """
    any_text, only_numbers = False, True
    for path in files:
        if path.stat().st_size == 0:
            continue
        lines = _csv_rows(path)
        columns = next(lines, [])
        _check_columns(needed, columns, "; the first line names them, with commas between")
        if twice := next((name for name in needed if columns.count(name) > 1), None):
            raise ConfigError(
                f"data.{needed[twice]} = {twice!r}: {path.name} has {columns.count(twice)} columns "
                "of this name; rename all but one"
            )
        places = {name: columns.index(name) for name in needed}
        while rows := list(islice(lines, _BATCH)):
            batch = {name: [row[place] or None for row in rows] for name, place in places.items()}
            texts = batch[spec.text_column] if spec.kind == "text" else ["text"]
            only_numbers = only_numbers and all(map(_is_number, filter(None, texts)))
            any_text = any_text or any(texts)
            yield batch
    if any_text and only_numbers:
        raise _wrong_texts(spec, "nothing but numbers")


def _csv_rows(path: Path) -> Iterator[list[str]]:
    """Yield the header and the rows of a CSV, without empty lines.

    Of a text that is not quoted, or whose quotes are not doubled, a part would be taken for the
    cell beside it: for the name of another user. Pandas cuts such a row where it is given columns.

    Raises:
        ValueError: a row with more cells than the header or fewer (as of a text with a line break),
            or quotes that do not end where a cell ends. The message holds no text.
    """
    csv.field_size_limit(sys.maxsize)  # a text can be a book
    width = None
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            for row in filter(None, reader):
                width = len(row) if width is None else width
                if len(row) != width:
                    raise ValueError(
                        f"{path.name}: line {reader.line_num} has {len(row)} cells, and the header "
                        f"{width}; put texts with commas or line breaks between quotes, write a "
                        "quote in them twice, and write empty cells too"
                    )
                yield row
        except csv.Error as error:
            raise ValueError(
                f"{path.name}: line {reader.line_num}: {error}; write a quote in a text twice"
            ) from error


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _json_batches(needed: Mapping[str, str], files: list[Path]) -> Iterator[Batch]:
    """Read JSON Lines, or files that are one list of objects, each value as it is written.

    `datasets` infers one type for a column of many rows: one user's row could turn the names of
    others into dates, or large integers among them into rounded floats.
    """
    columns = _json_columns(needed, files)
    if columns:
        _check_columns(needed, columns)
    for path in files:
        objects = _json_records(path)
        while records := list(islice(objects, _BATCH)):
            yield {name: [record.get(name) for record in records] for name in needed}


def _json_columns(needed: Mapping[str, str], files: list[Path]) -> list[str]:
    """Return the columns, read as far as it takes to see those that are needed.

    Of a column that is only named further down, the rows before are nulls, wherever they stand.
    """
    columns: dict[str, None] = {}
    for path in files:
        for record in _json_records(path):
            columns.update(dict.fromkeys(record))
            if needed.keys() <= columns.keys():
                return list(columns)
    return list(columns)


def _json_records(path: Path) -> Iterator[dict[str, Any]]:
    for label, value in _json_values(path):
        if not isinstance(value, dict):
            raise ValueError(f"{path.name}: {label} is no JSON object")
        yield value


def _json_values(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open(encoding="utf-8-sig") as lines:
        start = lines.read(1)
        while start.isspace():
            start = lines.read(1)
        lines.seek(0)
        if start == "[":
            yield from (
                (f"entry {n}", value)
                for n, value in enumerate(parse_json(lines.read(), private=True), start=1)
            )
            return
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield f"line {number}", parse_json(line, private=True)
                except ValueError as error:
                    what = str(error)
                    if isinstance(error, json.JSONDecodeError):  # which counts lines of its own
                        what = f"{error.msg} at character {error.pos + 1}"
                    raise ValueError(f"{path.name}: line {number} is no JSON: {what}") from error


def _dataset_batches(
    source: str, needed: Mapping[str, str], local: tuple[str, list[Path]] | None, scratch: str
) -> Iterator[Batch]:
    checked = False
    for file, dataset in _load(source, local, scratch):
        if local is None and dataset.features is None:
            raise unusable(
                source,
                "says no types of its columns; `datasets` would guess them from the rows, so that "
                "one user decides how others are called; give a folder of its files as data.source",
            )
        first = next(iter(dataset), None)
        if first is None:
            continue
        if not checked:
            _check_columns(needed, dataset.column_names or list(first))
            checked = True
        for name in needed.keys() - set(dataset.column_names or first):
            log.warning("data.%s = %r: %s has no such column", needed[name], name, file)
        kinds = {name: _kind(one) for name, one in (dataset.features or {}).items()}
        for batch in dataset.iter(batch_size=_BATCH):
            height = len(next(iter(batch.values())))
            # A later file may lack a column that the first one has.
            columns = {name: batch.get(name) or [None] * height for name in needed}
            for name in needed:
                if (kind := kinds.get(name)) is not None:
                    columns[name] = [_typed(cell, kind) for cell in columns[name]]
            yield columns


def _kind(feature: Any) -> Callable[[Any], object] | None:  # noqa: ANN401  (of an untyped module)
    """Return what a cell, or each of a list, is made into; None: it stays as it is.

    A class is stored as its place among the names, which moves when one is added, or as -1 where a
    row has no label: it is taken by its name. A number says how many digits it can have.
    """
    feature = getattr(feature, "feature", None) or feature
    if hasattr(feature, "int2str"):
        return lambda code: feature.names[code] if code >= 0 else None
    return _FEW_BITS.get(getattr(feature, "dtype", ""))


def _typed(cell: Any, kind: Callable[[Any], object]) -> object:  # noqa: ANN401  (a cell)
    if isinstance(cell, list):
        return [_typed(each, kind) for each in cell]
    return None if cell is None else kind(cell)


def _load(
    source: str, local: tuple[str, list[Path]] | None, scratch: str
) -> Iterator[tuple[str, Any]]:  # of an untyped module
    """Yield datasets, streaming or memory-mapped, and their files; `scratch` receives lock files.

    Files one by one: `datasets` gives all the types and class names of the first, which would
    write the users of the others in another way.
    """
    datasets = _datasets()
    options = {"split": "train", "streaming": True, "cache_dir": scratch}
    if local is None:
        yield source, datasets.load_dataset(source, **options)
        return
    loader, files = local
    if loader == ON_DISK:
        yield source, load_saved(datasets, Path(source).expanduser())
        return
    for path in files:
        if path.stat().st_size and not (loader == "parquet" and _no_rows(path)):
            file = glob.escape(str(path.resolve()))
            yield path.name, datasets.load_dataset(loader, data_files=[file], **options)


def _no_rows(path: Path) -> bool:
    """Whether a Parquet file is empty, which `datasets` takes for an error."""
    rows: int = importlib.import_module("pyarrow.parquet").read_metadata(path).num_rows
    return rows == 0


def _check_columns(needed: Mapping[str, str], columns: list[str], hint: str = "") -> None:
    for name, field in sorted(needed.items(), key=lambda item: item[1], reverse=True):
        if name not in columns:
            known = ", ".join(map(str, columns))
            if len(known) > _SHOWN:
                known = f"{known[:_SHOWN]}…"
            raise ConfigError(f"data.{field} = {name!r}: no such column; columns: {known}{hint}")


def _datasets() -> Any:  # noqa: ANN401  (an untyped module)
    """Import `datasets`, quietly and only when needed: it takes seconds."""
    module = importlib.import_module("datasets")
    module.disable_progress_bars()
    module.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # else a local file is reported to a server
    for name in ("datasets", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return module


def _texts(batch: Batch, spec: SourceSpec, before: int) -> list[str | None]:
    values, field = batch[spec.text_column], f"data.{spec.kind}_column = {spec.text_column!r}"
    if spec.kind == "text":
        return [_text(value, spec, row) for row, value in enumerate(values, start=before + 1)]
    read: Callable[..., str | None] = messages_text
    cells, fields = [values], [field]
    if spec.completion_column is not None:
        read = answer_text
        cells.append(batch[spec.completion_column])
        fields.append(f"data.completion_column = {spec.completion_column!r}")
    found, wrong = [], []
    for row, cell in enumerate(zip(*cells, strict=True), start=before + 1):
        try:
            found.append(read(*cell, *fields))
        except RowError as error:
            wrong.append((row, *error.args))
    if wrong:
        row, at, what, wanted = wrong[0]
        among = f"{len(wrong)} of rows {before + 1} to {before + len(values)} are unusable"
        raise ConfigError(f"{at}: row {row}: {what} ({among}); wanted: {wanted}")
    return found


def _text(value: object, spec: SourceSpec, row: int) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return whole_text(value)
    raise _wrong_texts(spec, f"{kind_of(value)} in row {row}")


def _wrong_texts(spec: SourceSpec, what: str) -> ConfigError:
    return ConfigError(f"data.text_column = {spec.text_column!r}: holds {what}; wanted: strings")

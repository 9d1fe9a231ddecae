"""JSON files of rows, in several shapes: lines, lists, a list in an object, pandas columns."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from fedsim.data.sources.local_files import open_text
from fedsim.utils.json_text import parse_json, parse_values


def json_records(path: Path, needed: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file, with unchanged values.

    JSON Lines are streamed. Other shapes are read at once: objects over several lines or separated
    by commas, lists, one object around a list, and columns as pandas writes them.

    Args:
        path: the file.
        needed: keys that a row needs.

    Raises:
        ValueError: (while iterating) the file is not JSON or has another shape; the message has a
            cure.
    """
    with open_text(path) as file:
        lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
        first, second = next(lines, None), next(lines, None)
        if first and second and _is_object(first[1]):
            for number, line in chain((first, second), lines):
                yield _row(_parsed(line, number, path), f"{path.name}: line {number}")
            return
    yield from _whole(path, needed)


def _is_object(line: str) -> bool:
    try:
        return isinstance(parse_json(line), dict)
    except ValueError:
        return False


def _parsed(line: str, number: int, path: Path) -> object:
    try:
        return parse_json(line)
    except ValueError as error:
        raise ValueError(
            f"{path.name}: line {number} is not JSON: {getattr(error, 'msg', error)}; to skip "
            f"lines that a crash cut short or filled with NUL: jq -cR 'fromjson?' {_to_lines(path)}"
        ) from error


def _to_lines(path: Path) -> str:
    """Return the end of a command that reads this file and writes another."""
    return f"{shlex.quote(str(path))} > {shlex.quote(f'{path.stem}-rows.jsonl')}"


def _row(value: object, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{place} is not a JSON object")
    return value


def _whole(path: Path, needed: Collection[str]) -> Iterator[dict[str, Any]]:
    with open_text(path) as file:
        text = file.read()
    try:
        values = list(parse_values(text))
    except ValueError as error:
        line = text.count("\n", 0, getattr(error, "pos", 0)) + 1
        what = getattr(error, "msg", error)
        raise ValueError(f"{path.name}: line {line} is not JSON: {what}") from error
    if len(values) == 1 and isinstance(values[0], dict):
        values = _rows_in(values[0], path, needed)
    for value in values:
        for row in value if isinstance(value, list) else [value]:
            yield _row(row, path.name)


def _rows_in(whole: Mapping[str, Any], path: Path, needed: Collection[str]) -> list[Any]:
    """Return the rows of a file that is one object."""
    if needed and all(isinstance(whole.get(column), dict) for column in needed):  # as of pandas
        places = dict.fromkeys(chain.from_iterable(whole[column] for column in needed))
        return [{column: whole[column].get(place) for column in needed} for place in places]
    lists: list[list[Any]] = [value for value in whole.values() if value and _are_rows(value)]
    is_flat = not any(isinstance(value, (dict, list)) for value in whole.values())
    if is_flat or all(column in whole for column in needed):
        return [whole]
    if len(lists) == 1:
        return lists[0]
    rows, of_what = "to_entries[] | {user: .key, text: .value[]}", "users with lists of texts"
    if "user_data" in whole:
        rows, of_what = ".user_data | to_entries[] | {user: .key, text: .value.x[]}", "LEAF"
    raise ValueError(
        f"{path.name} is one object without one list of rows; convert it to lines: jq -c '{rows}' "
        f"{_to_lines(path)} for {of_what}, '.KEY[]' for a list at KEY"
    )


def _are_rows(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)

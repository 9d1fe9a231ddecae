"""Write docs/config.md: `python -m fedsim.experiments.config_page > docs/config.md`.

Types and defaults come from the sections' fields, descriptions from the docstrings under them.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin

from pydantic.fields import FieldInfo

from fedsim.config.schema import Config
from fedsim.config.tables import OpenTable
from fedsim.utils.section import Section

_INTRODUCTION = """\
# Config: every key

The config of a run is one TOML file. An unknown key is an error, and the message names the nearest
known key. On the command line `--set server.learning_rate=0.003` overrides a value of the file
(`fedsim flower` has no `--set`). From Python `fedsim.run` takes the same keys as a dictionary. The
values that a run used are in the `config.toml` of its folder.

This page is written by `python -m fedsim.experiments.config_page`.
"""
_KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}
_PAGE = re.compile(r"`docs/([\w-]+)\.md(#[\w-]+)?`")  # docstrings cannot have relative links
_SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
_LARGE = 1e12  # larger limits are not shown


def page() -> str:
    """Return the page in Markdown, with a part for each table of a config, in its key order."""
    text = "\n".join([_INTRODUCTION, *(_part(*table) for table in tables("", Config))])
    return _PAGE.sub(r"[\1](\1.md\2)", text)


def described(section: type[Section]) -> dict[str, str]:
    """Return the docstring under each key of a section, on one line."""
    texts: dict[str, str] = {}
    try:
        (definition,) = ast.parse(inspect.getsource(section)).body
    except OSError:  # built from the signature of a torch optimizer
        return texts
    for field, below in pairwise(cast(ast.ClassDef, definition).body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=key)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[key] = " ".join(text.split())
    return texts


def tables(name: str, section: type[Section]) -> Iterator[tuple[str, str, type[Section]]]:
    """Yield a section and its nested sections, each with its TOML name and its selecting key.

    After a table with a choice of parts come the options of each built-in part with own keys.
    """
    yield name, "", section
    for key, field in section.model_fields.items():
        inner_name = f"{name}.{key}".lstrip(".")
        for inner in _inner(field):
            yield from tables(inner_name, inner)
            for table in (one for one in field.metadata if isinstance(one, OpenTable)):
                yield from _options(inner_name, table, inner)


def _options(
    name: str, table: OpenTable, base: type[Section]
) -> Iterator[tuple[str, str, type[Section]]]:
    parts: dict[type[Section], list[str]] = {}
    for part, options in table.built_in(base).items():
        parts.setdefault(options, []).append(f'"{part}"')
    for options, named in parts.items():
        if options is not base and described(options):
            yield name, f", `{table.tag} = {' or '.join(named)}`", options


def _inner(field: FieldInfo) -> list[type[Section]]:
    """Return the sections that a key may hold, except preparation steps (see docs/data.md)."""
    return [kind for kind in (field.annotation, *get_args(field.annotation)) if _is_section(kind)]


def _is_section(kind: Any) -> bool:  # noqa: ANN401
    return isinstance(kind, type) and issubclass(kind, Section)


def _part(name: str, selected: str, section: type[Section]) -> str:
    texts = described(section)
    tagged = section.model_fields.get("task")
    heading = "Outside of all tables" if not name else f"`[{name}]`"
    heading += selected
    if tagged is not None:
        heading += f", `task = {_toml(get_args(tagged.annotation)[0])}`"
    rows = [
        f"| `{key}` | {_kind(field.annotation, field.metadata)} | {_default(field)} | {text} |"
        for key, field in section.model_fields.items()
        if (text := texts.get(key)) is not None and not (not name and _inner(field))
    ]
    table = ["| key | value | default | |", "|---|---|---|---|", *rows, ""] if rows else []
    return "\n".join([f"## {heading}", "", inspect.getdoc(section) or "", "", *table])


def _kind(annotation: Any, limits: list[Any]) -> str:  # noqa: ANN401  (any annotation)
    """Return the allowed values in words: the type or the choices, and the limits."""
    inner = get_args(annotation)
    match get_origin(annotation):
        case _ if any(_is_section(kind) for kind in (annotation, *inner)):
            words = "a table"
        case _ if hasattr(annotation, "__metadata__"):
            words = _kind(inner[0], annotation.__metadata__[0].metadata)
        case _ if NoneType in inner:
            words = _kind(next(kind for kind in inner if kind is not NoneType), [])
        case origin if origin is Literal:
            words = ", ".join(f"`{_toml(choice)}`" for choice in inner)
        case origin if origin is tuple:
            words = "list of tables" if get_args(inner[0]) else f"list of {_KINDS[inner[0]]}s"
        case origin if origin is dict:
            words = f"table of {_kind(inner[1], [])}"
        case _:
            words = " ".join([_KINDS[annotation], ", ".join(_signs(limits))]).strip()
    return words


def _signs(limits: list[Any]) -> list[str]:
    return [
        f"{sign} {getattr(limit, name):g}"
        for limit in limits
        for name, sign in _SIGNS.items()
        if hasattr(limit, name) and abs(getattr(limit, name)) < _LARGE
    ]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is None or _inner(field):
        return "–"
    return f"`{_toml(field.default)}`"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[]"
    return f'"{value}"' if isinstance(value, str) else f"{value}"


if __name__ == "__main__":
    sys.stdout.write(page())

"""Turn each pydantic error on a config into one line: the key, the value, the accepted values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel

from fedsim.config.tables import UNKNOWN_PART, OpenTable
from fedsim.errors import nearest
from fedsim.utils.section import Section

_LONGEST = 300
_KINDS = {  # pydantic's types in the words of docs/config.md
    "tuple": "a list",
    "int": "a whole number",
    "float": "a number",
    "string": "a text",
    "bool": "true or false",
    "dict": "a table",
    "model": "a table",
}
_PLAIN = {  # advice by pydantic's error type; {gt}, {ge}, … come from the error's context
    "missing": "give a value; it has no default",
    "finite_number": "give a finite number",
    "greater_than": "give more than {gt:g}",
    "greater_than_equal": "give at least {ge:g}",
    "less_than": "give less than {lt:g}",
    "less_than_equal": "give at most {le:g}",
    "literal_error": "give {expected}",
    "too_short": "give at least {min_length} of them",
    "string_too_short": "give a text that is not empty",
}


def explain(problem: Mapping[str, Any], root: type[BaseModel], raw: object) -> str:
    """Turn one error of `ValidationError.errors()` into "key = value: advice".

    Args:
        problem: the error.
        root: the class of the config.
        raw: the validated mapping; its tables name the parts, which define further keys.
    """
    location = problem["loc"]
    shown, node, _ = _walk(root, location, raw)
    key = ".".join(shown) or "config"
    if problem["type"] == UNKNOWN_PART:
        return str(problem["msg"])
    if problem["type"] == "extra_forbidden":
        _, holder, table = _walk(root, location[:-1], raw)
        known = sorted(holder.model_fields) if _is_model(holder) else []
        if table is not None and (parts := _parts_with_key(*table, str(location[-1]))):
            return f"{key}: only {parts} has it; known keys: {', '.join(known)}"
        near = nearest(str(location[-1]), known)
        return f"{key}: unknown key; {near or 'known keys: ' + ', '.join(known)}"
    if problem["type"].startswith("union_tag"):
        return _about_tag(key, problem["ctx"], _tags(node))
    message = _in_plain_words(problem)
    given = problem["input"]
    kind = problem["type"].partition("_")[0]
    if kind in _KINDS and message.startswith("Input should be a valid"):
        message = f"give {_KINDS[kind]}"
        if kind == "tuple" and isinstance(given, str) and get_args(node)[0] is str:
            message += f", as --set '{key}=[\"{given[:_LONGEST]}\"]'"
    if isinstance(given, Mapping):
        return f"{key}: {message}"
    return f"{key} = {_shown(given)}: {message}"


def _in_plain_words(problem: Mapping[str, Any]) -> str:
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        if near := nearest(str(problem["input"]), choices):
            return near
    if kind in _PLAIN:
        return _PLAIN[kind].format(**context)
    return str(problem["msg"]).removeprefix("Value error, ")


def _shown(value: object) -> str:
    """Return the value's repr, cut to `_LONGEST` characters."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _about_tag(key: str, context: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    field = context["discriminator"].strip("'")
    if "tag" not in context:
        choices = " or ".join(f'{field} = "{name}"' for name in known)
        return f"{key}: give {choices}"
    tag = context["tag"]
    near = nearest(tag, list(known)) or f"known: {', '.join(known)}"
    return f"{key}.{field} = {tag!r}: unknown; {near}"


Table = tuple[OpenTable, type[Section]]


def _walk(
    root: type[BaseModel], location: Sequence[str | int], raw: object
) -> tuple[list[str], Any, Table | None]:
    """Follow the location of an error through the config classes.

    Returns:
        the location's keys without the tags of unions; the type at its end; the open table at its
        end, or None.
    """
    shown: list[str] = []
    node: Any = root
    table: Table | None = None
    for part in location:
        tags = _tags(node)
        if part in tags:
            node = tags[str(part)]
            continue
        shown.append(str(part))
        raw = raw.get(part) if isinstance(raw, Mapping) else None
        table = None
        if _is_model(node):
            field = node.model_fields.get(str(part))
            node = None if field is None else _section(field.annotation)
            opened = [one for one in field.metadata if isinstance(one, OpenTable)] if field else []
            if opened:
                table = opened[0], node
                node = opened[0].options(node, raw)
        else:
            node = get_args(node)[0] if get_origin(node) is tuple else None
    return shown, node, table


def _parts_with_key(table: OpenTable, base: type[Section], key: str) -> str:
    """Return the built-in parts that have the option `key`, as in 'name = "els"'."""
    parts = table.built_in(base).items()
    matches = [f'"{name}"' for name, options in parts if key in options.model_fields]
    return f"{table.tag} = {' or '.join(matches)}" if matches else ""


def _section(annotation: Any) -> Any:  # noqa: ANN401
    """Return the annotation; for an optional section (`Section | None`), the section."""
    models = [kind for kind in get_args(annotation) if _is_model(kind)]
    optional = len(models) == 1 and set(get_args(annotation)) == {models[0], type(None)}
    return models[0] if optional else annotation


def _tags(node: Any) -> dict[str, Any]:  # noqa: ANN401  (any annotation)
    """Map tags to models, for a union of sections with a tag as first field; else {}."""
    if get_origin(node) is Annotated:
        node = get_args(node)[0]
    models = [kind for kind in get_args(node) if _is_model(kind)]
    if len(models) < 2:
        return {}
    firsts = [next(iter(kind.model_fields.values())).annotation for kind in models]
    return {get_args(first)[0]: kind for first, kind in zip(firsts, models, strict=True)}


def _is_model(node: Any) -> bool:  # noqa: ANN401
    return isinstance(node, type) and issubclass(node, BaseModel)

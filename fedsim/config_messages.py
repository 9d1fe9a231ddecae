"""What is wrong with a config, in one line a problem: the key, the value and what would do."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel


def explain(problem: Mapping[str, Any], root: type[BaseModel]) -> str:
    """Turn one pydantic error of a config of type `root` into "key = value: what would do"."""
    location = [str(part) for part in problem["loc"] if part not in ("fedsgd", "fedavg")]
    key = ".".join(location) or "config"
    if problem["type"] == "extra_forbidden":
        known = _known_keys(root, location[:-1])
        near = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
        return f"{key}: unknown key; {hint}"
    if problem["type"] == "union_tag_not_found":
        return f'{key}: give task = "fedsgd" or task = "fedavg"'
    message = str(problem["msg"]).removeprefix("Value error, ")
    if isinstance(problem["input"], Mapping):
        return f"{key}: {message}"
    return f"{key} = {problem['input']!r}: {message}"


def _known_keys(root: type[BaseModel], path: Sequence[str]) -> set[str]:
    """Return the keys of the section at `path`; of all its kinds where a key decides which."""
    sections: list[type[BaseModel]] = [root]
    for part in path:
        fields = [one.model_fields[part] for one in sections if part in one.model_fields]
        sections = [kind for field in fields for kind in _models_in(field.annotation)]
    return {key for one in sections for key in one.model_fields}


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]

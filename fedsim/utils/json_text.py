"""Parse untrusted JSON, with `ValueError` for all failures; digests of JSON."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401  (any JSON)
    """Parse JSON; error messages do not quote keys, which may be names of users.

    Raises:
        ValueError: the text is not JSON or not UTF-8, is nested too deeply, has a number with too
            many digits, or has an object with a repeated key.
    """
    try:
        # Decode here, because json would also accept UTF-16 and others.
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(decoded, object_pairs_hook=_distinct)
    except RecursionError:
        raise ValueError("nested too deeply") from None


_NEXT = re.compile(r"[^\s,]")


def parse_values(text: str) -> Iterator[Any]:
    """Yield the JSON values of a text, separated by spaces, line ends or commas.

    Raises:
        ValueError: (while iterating) see `parse_json`.
    """
    decoder, end = json.JSONDecoder(object_pairs_hook=_distinct), 0
    while (start := _NEXT.search(text, end)) is not None:
        try:
            value, end = decoder.raw_decode(text, start.start())
        except RecursionError:
            raise ValueError("nested too deeply") from None
        yield value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("an object has a key twice")
    return content


def read_json(path: Path) -> Any:  # noqa: ANN401
    """Parse a JSON file.

    Raises:
        OSError: the file cannot be read.
        ValueError: see `parse_json`.
    """
    return parse_json(path.read_bytes())


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by their dotted keys.

    Examples:
        >>> flat({"server": {"learning_rate": 0.1}, "seed": 0})
        {'server.learning_rate': 0.1, 'seed': 0}
    """
    rows: dict[str, Any] = {}
    for key, value in tree.items():
        nested = isinstance(value, Mapping) and value
        rows |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return rows


def digest(content: object) -> str:
    """Return the SHA-256 (hex) of JSON values, independent of the order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

"""Parse untrusted JSON, where every failure is a `ValueError`; digests of JSON."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any


def parse_json(text: str | bytes, *, private: bool = False) -> Any:  # noqa: ANN401  (any JSON)
    """Return what the text says.

    Args:
        text: JSON.
        private: an error quotes no key, which may be somebody's name.

    Raises:
        ValueError: it is not JSON, not UTF-8, nested too deeply, has an endless number, or an
            object has a key twice, of which a reader would see one and a program the other.
    """
    try:
        # Decoded here: json would guess at UTF-16 and others.
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(decoded, object_pairs_hook=partial(_once, private=private))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _once(pairs: list[tuple[str, Any]], *, private: bool) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        if private:
            raise ValueError("an object has a key twice")
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return found


def read_json(path: Path) -> Any:  # noqa: ANN401
    """Return what a file says.

    Raises:
        OSError: it cannot be read.
        ValueError: as of `parse_json`.
    """
    return parse_json(path.read_bytes())


def digest(content: object) -> str:
    """Return the SHA-256 (hex) of JSON values, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def is_count(value: object) -> bool:
    """Whether it is an integer from 0 on that fits 64 bits; true and false are none."""
    return type(value) is int and 0 <= value < 1 << 63

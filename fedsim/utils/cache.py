"""A disk cache of slow numbers, by their parameters and by what computes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedsim.utils.files import cache_dir, write_atomically
from fedsim.utils.json_text import digest, read_json

_PACKAGES = ("dp-accounting", "numpy", "scipy")
_SOURCES = (
    *("accounting/**/*.py", "config/*.py", "data/**/*.py", "noise/*.py", "strategies/*/*.py"),
    *("registry.py", "sampling.py"),
)


def remembered(kind: str, inputs: Mapping[str, Any], compute: Callable[[], float]) -> float:
    """Return `compute()`, or what it returned before for the same inputs, by the same code.

    The code is that of the accountants here, to the byte, and the libraries by their versions: a
    number that an earlier fedsim got wrong is never read again.

    Args:
        kind: names the folder under `fedsim.utils.files.cache_dir()`.
        inputs: everything the result depends on, as JSON values.
        compute: what to do when nothing is known; its errors are not remembered.

    A file that is missing or unreadable is computed again, and a cache that cannot be written is no
    reason to fail.
    """
    key = {
        **inputs,
        "sources": _sources(),
        "versions": {name: version(name) for name in _PACKAGES},
    }
    path = cache_dir() / kind / f"{digest(key)}.json"
    with suppress(OSError, ValueError, LookupError, TypeError):
        return float(read_json(path)["value"])
    value = compute()
    with suppress(OSError):
        write_atomically(path, json.dumps({"inputs": key, "value": value}, indent=1))
    return value


@lru_cache
def _sources() -> str:
    """Return a SHA-256 (hex) of the files of fedsim that a price follows from."""
    package = Path(__file__).parents[1]
    hashed = hashlib.sha256()
    for path in sorted(path for pattern in _SOURCES for path in package.glob(pattern)):
        hashed.update(f"{path.relative_to(package)} {len(content := path.read_bytes())}\n".encode())
        hashed.update(content)
    return hashed.hexdigest()

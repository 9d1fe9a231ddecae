"""A disk cache of numbers that are slow to compute, keyed by inputs and package versions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from fedsim.utils.files import cache_dir, write_atomically
from fedsim.utils.json_text import digest, read_json

_VERSION = 1  # increase this when the same inputs would give another number
_PACKAGES = ("fedsim-dp", "dp-accounting", "numpy", "scipy")


def remembered(kind: str, inputs: Mapping[str, Any], compute: Callable[[], float]) -> float:
    """Return `compute()`, or its cached result for the same inputs and package versions.

    Unreadable entries are computed again. Errors in writing the cache are ignored.

    Args:
        kind: name of the folder under `fedsim.utils.files.cache_dir()`.
        inputs: all inputs of the result, as JSON values.
        compute: computes the result; its errors are not cached.
    """
    key = {
        **inputs,
        "format": _VERSION,
        "versions": {name: version(name) for name in _PACKAGES},
    }
    path = cache_dir() / kind / f"{digest(key)}.json"
    with suppress(OSError, ValueError, LookupError, TypeError):
        return float(read_json(path)["value"])
    value = compute()
    with suppress(OSError):
        write_atomically(path, json.dumps({"inputs": key, "value": value}, indent=1))
    return value

"""A disk cache of slow numbers, by their parameters and the versions that compute them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from fedsim.utils.files import cache_dir, write_atomically
from fedsim.utils.json_text import digest, read_json

_VERSION = 1  # raise it when the same inputs would give another number
_PACKAGES = ("fedsim-dp", "dp-accounting", "numpy", "scipy")


def remembered(kind: str, inputs: Mapping[str, Any], compute: Callable[[], float]) -> float:
    """Return `compute()`, or what it returned before for the same inputs, by the same versions.

    A number that an earlier fedsim got wrong is never read again.

    Args:
        kind: names the folder under `fedsim.utils.files.cache_dir()`.
        inputs: everything the result depends on, as JSON values.
        compute: what to do when nothing is known; its errors are not remembered.

    A file that is missing or unreadable is computed again, and a cache that cannot be written is no
    reason to fail.
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

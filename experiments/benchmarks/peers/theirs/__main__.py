"""Server of a peer: answers each JSON line on standard input with a JSON line.

`{"do": "prepare", ...}` sets up the work, `{"do": "run"}` computes and returns the seconds,
`{"do": "sum", "path": ...}` writes the last clipped sum to a file, `{"do": "versions"}` returns the
installed versions.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch

from .with_opacus import prepare as prepare_opacus
from .with_pfl import prepare as prepare_pfl

_PREPARE = {"pfl": prepare_pfl, "opacus": prepare_opacus}


def keep_large_blocks() -> None:
    """Configure glibc's malloc as fedsim does, so both avoid the cost of fresh pages."""
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(-3, 1 << 30)
    mallopt(-1, (1 << 31) - 1)


class Worker:
    """Holds the last prepared work."""

    def __init__(self) -> None:
        self._compute: Callable[[], dict[str, torch.Tensor]] = dict
        self._sum: dict[str, torch.Tensor] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one request."""
        if request["do"] == "versions":
            return {name: version(name) for name in ("torch", "transformers", "pfl", "opacus")}
        if request["do"] == "prepare":
            self._sum = {}
            self._compute, notes = _PREPARE[request["peer"]](request)
            return notes
        if request["do"] == "sum":
            torch.save(self._sum, request["path"])
            return {}
        started = time.perf_counter()
        self._sum = self._compute()
        return {"seconds": time.perf_counter() - started}


def main() -> None:
    """Answer requests until standard input ends; other output goes to standard error."""
    keep_large_blocks()
    warnings.simplefilter("ignore")  # warnings of packages that we cannot fix
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        replies.write(json.dumps(worker.answer(json.loads(line))) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()

"""Server of a peer: answers a JSON line for each on standard input.

`{"do": "prepare", ...}` makes it ready, `{"do": "run"}` computes and says how many seconds it
took, `{"do": "sum", "path": ...}` writes the last clipped sum there, `{"do": "versions"}` says
what is installed.
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
    """Set glibc's malloc as fedsim's process does, so that neither side pays for fresh pages."""
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(-3, 1 << 30)
    mallopt(-1, (1 << 31) - 1)


class Worker:
    """Holds the work that was prepared last."""

    def __init__(self) -> None:
        self._compute: Callable[[], dict[str, torch.Tensor]] = dict
        self._sum: dict[str, torch.Tensor] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what the request says."""
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
    """Answer until standard input ends; whatever else is printed goes to standard error."""
    keep_large_blocks()
    warnings.simplefilter("ignore")  # of packages that we cannot mend
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        replies.write(json.dumps(worker.answer(json.loads(line))) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()

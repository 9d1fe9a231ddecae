"""Peak memory of private gradients and of a non-private step, each in its own process.

`python -m fedsim.experiments.benchmarks.engines.engine_memory ghost gpt2-small 32` computes once
and prints the seconds and the process's peak resident bytes. A process's peak never decreases, so
each case needs its own.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, cast

import torch

from fedsim.clients.engine_choice import choose_engine
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clipping import FlatClip
from fedsim.experiments.benchmarks.engines.cases import Case, Workload, workload
from fedsim.experiments.benchmarks.engines.floor import summed_loss
from fedsim.experiments.benchmarks.timing import Row, in_own_process
from fedsim.utils.machine import keep_freed_memory, peak_memory_bytes

_PLAIN, _GHOST = "non-private", "ghost"
_MODEL, _UNITS = "gpt2-small", 32


def memory_rows() -> list[Row]:
    """Return one row for the non-private step and one for `ghost`, for 32 units of 64 tokens.

    Here `ratio` is the row's peak over the non-private step's peak.
    """
    measured = {
        engine: in_own_process(__name__, engine, _MODEL, _UNITS) for engine in (_PLAIN, _GHOST)
    }
    reference = measured[_PLAIN]["peak_bytes"]
    return [
        Row(
            benchmark="engines",
            case=f"memory/{_MODEL}",
            engine=engine,
            seconds=peak["seconds"],
            repetitions=1,
            ratio=peak["peak_bytes"] / reference,
            details={"units": _UNITS, "peak_bytes": peak["peak_bytes"]},
        )
        for engine, peak in measured.items()
    ]


def step(engine: str, model: str, units: int) -> dict[str, Any]:
    """Compute once in this process, and return `seconds` and `peak_bytes`."""
    keep_freed_memory()
    work = workload(Case("els", model, units))
    started = time.perf_counter()
    if engine == _PLAIN:
        _train(work)
    else:
        chosen = choose_engine(engine, work.task, work.model)
        chosen(work.task, work.parameters, work.keys, FlatClip(l2_clip_norm=0.1), 0)
    return {"seconds": time.perf_counter() - started, "peak_bytes": peak_memory_bytes()}


def _train(work: Workload) -> None:
    """Take one SGD step like a plain training script: the network's own weights, one batch."""
    work.parameters.clear()  # no second copy of the parameters
    network = cast(OpenModel, work.model).module.requires_grad_(True)
    tokens = torch.cat([unit.tokens for unit in work.units])
    summed_loss(network(tokens, use_cache=False).logits, tokens).backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(network.parameters(), lr=1e-3).step()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(step(sys.argv[1], sys.argv[2], int(sys.argv[3]))) + "\n")

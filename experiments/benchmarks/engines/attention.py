"""Seconds and memory of a cohort's gradients with each attention kind, by length of examples.

`python -m fedsim.experiments.benchmarks.engines.attention sdpa 1024 smollm2-135m-lora 2` computes
the gradients of two users of 1,024 tokens once, and prints the process's peak resident bytes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import cast, get_args

from fedsim.config import Attention
from fedsim.experiments.benchmarks.engines.cases import Case, workload
from fedsim.experiments.benchmarks.engines.measured import AUTO, Contestant
from fedsim.experiments.benchmarks.timing import (
    Row,
    in_own_process,
    interleaved,
    row_of,
    times_as_long,
)
from fedsim.utils.machine import keep_freed_memory, peak_memory_bytes

_LENGTHS = (128, 512, 1024, 2048)  # the cohort has as many tokens as the longest example
_REPETITIONS = 5
_KINDS: tuple[Attention, ...] = get_args(Attention)


def run(
    model: str = "smollm2-135m-lora",
    lengths: Sequence[int] = _LENGTHS,
    repetitions: int = _REPETITIONS,
) -> list[Row]:
    """Return the seconds and the peak memory of both kinds for each length.

    A ratio divides the value of "eager" by the row's value.
    """
    return [row for length in lengths for row in _of_length(model, length, lengths, repetitions)]


def _of_length(model: str, length: int, lengths: Sequence[int], repetitions: int) -> list[Row]:
    units = max(lengths) // length
    tasks: dict[str, Contestant] = {
        kind: _contestant(kind, model, length, units) for kind in _KINDS
    }
    for task in tasks.values():
        task.warm_up(whole=True)
    seconds = interleaved(tasks, [*_KINDS] * repetitions)
    peaks = {
        kind: in_own_process(__name__, kind, length, model, units)["peak_bytes"] for kind in _KINDS
    }
    case, details = f"{model}, {length} tokens", {"units": units, "tokens": units * length}
    return [
        *(
            row_of(
                "attention",
                case,
                kind,
                seconds[kind],
                ratio=times_as_long(seconds["eager"], seconds[kind]),
                details=details,
            )
            for kind in _KINDS
        ),
        *(
            Row(
                benchmark="attention",
                case=f"{case}: peak memory",
                engine=kind,
                seconds=None,
                repetitions=1,
                ratio=peaks["eager"] / peaks[kind],
                details={**details, "peak_bytes": peaks[kind]},
            )
            for kind in _KINDS
        ),
    ]


def _contestant(kind: Attention, model: str, length: int, units: int) -> Contestant:
    keep_freed_memory()
    case = Case("uls", model, units, sequence_length=length, attention=kind)
    return Contestant(AUTO, workload(case))


if __name__ == "__main__":
    kind, length, model, units = sys.argv[1:]
    _contestant(cast(Attention, kind), model, int(length), int(units))()
    sys.stdout.write(json.dumps({"peak_bytes": peak_memory_bytes()}) + "\n")

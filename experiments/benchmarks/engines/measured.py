"""Time all engines and the floor on one case, in turns in one process."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch

from fedsim.clients.engine_choice import choose_engine
from fedsim.clipping import FlatClip
from fedsim.execution import Engine
from fedsim.experiments.benchmarks.engines.cases import Case, Workload, rectangular, workload
from fedsim.experiments.benchmarks.engines.floor import (
    BATCH_SIZES,
    StrongFloor,
    finish,
    floor,
    num_examples,
)
from fedsim.experiments.benchmarks.engines.whole_round import WholeRound
from fedsim.experiments.benchmarks.timing import Row, interleaved, row_of, times_as_long
from fedsim.tensors import Tensors, l2_norm
from fedsim.utils.machine import keep_freed_memory

FLOOR, AUTO, LOOP, RECTANGULAR = "floor", "auto", "loop", "auto, rectangular"
STRONG, ROUND = "strong floor", "whole round"
CLIP = FlatClip(l2_clip_norm=0.1)  # below all gradient norms, so every unit is clipped

_OFTEN = (FLOOR, AUTO, RECTANGULAR)  # repeated often; the others only give orientation
_FEW = (STRONG, ROUND)
_PLAIN = (FLOOR, STRONG, RECTANGULAR)  # these use examples of full length if users are ragged
_BATCHED = ("materialised", "ghost", "vmap")
# Relative tolerances. Engines promise 1e-5 of an update, and a sum may double it. `ghost` scales an
# update down by the ratio of its norm bound to the norm, see `ghost.py`.
_TOLERANCE, _TOLERANCE_GHOST = 1e-4, 3e-3

# A floor of fewer seconds is repeated more often: with 5 to 7 repetitions, two names of the same
# engine differed by 1 to 6 %.
_LONG, _VERY_LONG = 0.6, 2.0
# Tries of each of the floor's batch sizes: with one try each, half of the runs chose the slower
# size, by 3 to 5 %.
_TRIES = 4


def measured(
    case: Case,
    engines: Sequence[str] | None = None,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    repetitions: tuple[int, int] | None = None,
    *,
    compiles: bool = True,
) -> list[Row]:
    """Return the rows of a case, with the floor's row first.

    They have three ratios: auto's `ratio_to_floor`; the strong floor's `ratio`, the floor's seconds
    over the strong floor's; and the whole round's `ratio_to_floor`, over its engine's seconds.

    Args:
        case: the case to measure.
        engines: engines, including auto; by default auto and loop, and for mean gradients of
            users all engines.
        batch_sizes: candidates for the floor, which uses the fastest.
        repetitions: of floor and auto, and of the others; by default chosen by the floor's seconds.
        compiles: see `StrongFloor`.

    Raises:
        RuntimeError: an engine's sum differs from the loop's.
    """
    keep_freed_memory()
    work = workload(case)
    contestants = {name: Contestant(name, work) for name in engines or _engines_of(case)}
    plain = rectangular(work, case) if case.kind == "uls-ragged" else work
    if plain is not work:
        contestants[RECTANGULAR] = Contestant(AUTO, plain)
    contestants[AUTO].warm_up(whole=True)  # its buffers reduce the GPU memory for the floor
    batch_size, once = _fastest_batch(plain, batch_sizes)
    often, seldom = repetitions or _repetitions(once)
    for name, contestant in contestants.items():
        if name != AUTO:
            contestant.warm_up(whole=seldom > 1 or name in _OFTEN)
    strong = StrongFloor(plain, batch_size, compiles=compiles)
    whole = WholeRound(contestants[AUTO].engine, work, CLIP)
    tasks: dict[str, Callable[[], None]] = {
        FLOOR: partial(_computed_floor, plain, batch_size),
        **contestants,
        STRONG: strong,
        ROUND: whole,
    }
    seconds = interleaved(tasks, _order([*tasks], often, seldom))
    peaks = {} if case.device == "cpu" else {name: _peak(task) for name, task in tasks.items()}
    extra: dict[str, dict[str, Any]] = {**_differences(contestants)}
    extra |= {FLOOR: {"batch_size": batch_size}, STRONG: strong.details, ROUND: {"floor": AUTO}}
    ratios: dict[str, dict[str, Any]] = {
        name: {"ratio_to_floor": times_as_long(taken, seconds[FLOOR])}
        for name, taken in seconds.items()
    }
    ratios[STRONG] = {"ratio": times_as_long(seconds[FLOOR], seconds[STRONG])}
    ratios[ROUND] = {"ratio_to_floor": median(whole.ratios)}
    if RECTANGULAR in seconds:
        ratio = times_as_long(seconds[AUTO], seconds[RECTANGULAR])
        extra[AUTO] |= {"ratio_to_rectangular": ratio}
    return [
        row_of(
            "engines",
            case.name,
            name,
            taken,
            details=_details(case, plain if name in _PLAIN else work, median(taken))
            | extra.get(name, {})
            | peaks.get(name, {}),
            **ratios[name],
        )
        for name, taken in seconds.items()
    ]


class Contestant:
    """An engine and its work; a call computes and keeps the round's sum."""

    def __init__(self, engine: str, work: Workload) -> None:
        self.work = work
        self.total: Tensors = {}
        most = max(unit.tokens.numel() for unit in work.units)
        self.engine: Engine = choose_engine(engine, work.task, work.model, most)

    def __call__(self) -> None:
        """Compute, and wait for a GPU to finish."""
        work = self.work
        self.total = self.engine(work.task, work.parameters, work.keys, CLIP, 0).values
        finish(next(iter(self.total.values())))

    def warm_up(self, *, whole: bool) -> None:
        """Allocate buffers, verify rules and let `auto` choose, on all or some units."""
        keys = self.work.keys
        some = keys if whole else keys[: max(1, len(keys) // 8)]
        self.engine(self.work.task, self.work.parameters, some, CLIP, 0)


def _engines_of(case: Case) -> tuple[str, ...]:
    batched = _BATCHED if case.kind in ("uls", "uls-ragged") else ()
    # `vmap` has no rule for fused attention or the LSTM.
    refused = case.attention != "eager" or case.model == "mcmahan-lstm"
    return (AUTO, LOOP, *(name for name in batched if not (refused and name == "vmap")))


def _computed_floor(work: Workload, batch_size: int) -> None:
    finish(floor(work, batch_size)[0])


def _fastest_batch(work: Workload, sizes: Sequence[int]) -> tuple[int, float]:
    """Return the floor's fastest batch size and its seconds, after an untimed pass."""
    count = num_examples(work.units)
    useful = [size for size in sizes if size <= count] or [min(sizes)]
    _computed_floor(work, useful[0])
    taken = dict.fromkeys(useful, math.inf)
    for turn in range(_TRIES):
        if turn and min(taken.values()) > _VERY_LONG:
            break
        for size in [size for size in useful if size in taken]:
            started = time.perf_counter()
            try:
                _computed_floor(work, size)
            except torch.OutOfMemoryError:
                del taken[size]
            else:
                taken[size] = min(taken[size], time.perf_counter() - started)
                continue
            gc.collect()  # possible now: the error no longer holds the pass
            torch.cuda.empty_cache()
    best = min(taken, key=lambda size: taken[size])
    return best, taken[best]


def _differences(contestants: Mapping[str, Contestant]) -> dict[str, dict[str, float]]:
    """Return the relative L2 distance of each engine's sum from the loop's, if the loop ran."""
    differences: dict[str, dict[str, float]] = {name: {} for name in contestants}
    if LOOP not in contestants:
        return differences
    reference = contestants[LOOP]
    size = l2_norm(reference.total)
    for name, contestant in contestants.items():
        if contestant.work is not reference.work:
            continue
        difference = {key: value - reference.total[key] for key, value in contestant.total.items()}
        relative = l2_norm(difference) / size
        if not relative <= (_TOLERANCE_GHOST if name == "ghost" else _TOLERANCE):
            raise RuntimeError(f"engine {name!r}: its sum is {relative:.1e} away from the loop's")
        differences[name] = {"relative_difference": relative}
    return differences


def _repetitions(floor_seconds: float) -> tuple[int, int]:
    if floor_seconds < _LONG:
        return 15, 3
    return (9, 2) if floor_seconds < _VERY_LONG else (5, 1)


def _order(names: Sequence[str], often: int, seldom: int) -> list[str]:
    """Return the order of repetitions, in turns; names with few repetitions end earlier."""
    few = min(often, 3 if seldom > 1 else 2)
    most = dict.fromkeys(_OFTEN, often) | dict.fromkeys(_FEW, few)
    return [name for turn in range(often) for name in names if turn < most.get(name, seldom)]


def _details(case: Case, work: Workload, seconds: float) -> dict[str, Any]:
    units = len(work.units)
    return {
        "group_size": case.group_size,
        "units": units,
        "tokens": work.num_tokens,
        "threads": torch.get_num_threads(),
        "tokens_per_second": work.num_tokens / seconds,
        ("examples_per_second" if case.kind == "els" else "users_per_second"): units / seconds,
        **({"local_steps": case.group_size} if case.kind == "fedavg" else {}),
    }


def _peak(task: Callable[[], None]) -> dict[str, int]:
    """Return the peak bytes of GPU memory in tensors during a task."""
    torch.cuda.reset_peak_memory_stats()
    task()
    return {"peak_bytes": torch.cuda.max_memory_allocated()}

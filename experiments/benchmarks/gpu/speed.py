"""Times on a device: private rounds over non-private training, and workers that share a GPU.

Operations are counted as usual (Kaplan et al. 2020): a token costs 2 operations per weight forward
and 4 backward. If only adapters are trained, backward forms no gradients of frozen weights, which
leaves 2 + 2. Attention's own products are not counted.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from fedsim.config import Config, parse_config
from fedsim.errors import ConfigError
from fedsim.experiments.benchmarks.engines.cases import Case, workload
from fedsim.experiments.benchmarks.engines.measured import (
    AUTO,
    CLIP,
    ROUND,
    STRONG,
    Contestant,
    measured,
)
from fedsim.experiments.benchmarks.engines.networks import CONFIGS, LORA_RANK, network
from fedsim.experiments.benchmarks.engines.whole_round import WholeRound
from fedsim.experiments.benchmarks.gpu.checks import small_data
from fedsim.experiments.benchmarks.server.large_round import save_random
from fedsim.experiments.benchmarks.timing import Row, repeated, row_of
from fedsim.grids.build import build_executor
from fedsim.materials import materials_of
from fedsim.runner.launch import open_grid
from fedsim.strategy import build_plan

log = logging.getLogger(__name__)


class NotMeasured(Exception):  # noqa: N818 (a finding, not a fault)
    """A slice has nothing to measure; the message says why."""


_LENGTH = 128
# Users, their examples, and how many times the floor's seconds the private sum may take.
_COHORTS = ((1024, 1, 1.10), (64, 16, 1.03))
_GOAL = 1.05  # ratio of the floor to the strong floor, and of a round to its gradients
_SHARED = 64  # users of a sum over several workers
_QUICK = Case("uls", "tiny-gpt", 4, 2, 16, "cpu", "tiny-gpt, 32 tokens", "bfloat16", "sdpa")
_BATCH_SIZES, _REPETITIONS = (128, 256), (5, 2)

_PEAKS = {
    "H100": 989e12,
    "H200": 989e12,
}  # operations per second in dense bfloat16, from data sheets
_UTILISATION = 0.4


def ratios(models: Mapping[str, str], device: str, quick: bool) -> Iterator[Row]:
    """Measure each model with users of 128 and of 2,048 tokens, in bfloat16 with fused attention.

    Args:
        models: map from shown names to names for `network`.
        device: device, in torch's notation.
        quick: whether to measure only one tiny case.

    Raises:
        RuntimeError: a model could not be measured; raised after all others.
    """
    if quick:
        yield from case_rows(
            replace(_QUICK, device=device), _COHORTS[1][2], (4, 8), (1, 1), compiles=False
        )
        return
    failed = []
    for shown, model in models.items():
        for users, examples, goal in _COHORTS:
            name = f"{shown}, {examples * _LENGTH:,} tokens a user"
            case = Case("uls", model, users, examples, _LENGTH, device, name, "bfloat16", "sdpa")
            try:
                yield from case_rows(case, goal, _BATCH_SIZES, _REPETITIONS)
            except RuntimeError as error:  # for example, out of memory
                log.exception("%s", name)
                failed.append(f"{name}: {type(error).__name__}: {error}")
    if failed:
        raise RuntimeError("; ".join(failed))


large = partial(ratios, {"350 M, all parameters": "gpt2-medium"})
adapters = partial(
    ratios,
    {
        "GPT-2 small, adapters": "gpt2-small-lora",
        "GPT-2 medium, adapters": "gpt2-medium-lora",
    },
)


def local_training(device: str, quick: bool) -> Iterator[Row]:
    """Measure local training of the LSTM, one step per example of 256 users."""
    users, examples, length = (2, 2, 8) if quick else (256, 16, 20)
    name = f"FedAvg, LSTM, {users} users of {examples * length} tokens"
    case = Case("fedavg", "mcmahan-lstm", users, examples, length, device, name)
    yield from case_rows(case, None, (4,) if quick else (256, 1024), (1, 1), compiles=False)


def rounds(device: str, quick: bool) -> Iterator[Row]:
    """Measure second rounds against their engine's seconds, for the cost of the server's part."""
    names = ("tiny-gpt",) if quick else ("gpt2-small-lora", "gpt2-medium")
    for model in names:
        users, examples, length = (4, 2, 16) if quick else (64, 16, _LENGTH)
        case = Case("uls", model, users, examples, length, device, "", "bfloat16", "sdpa")
        work = workload(case)
        engine = Contestant(AUTO, work)
        engine.warm_up(whole=True)
        whole = WholeRound(engine.engine, work, CLIP)
        seconds = []
        for _ in range(1 if quick else 5):
            started = time.perf_counter()
            whole()
            seconds.append(time.perf_counter() - started)
        ratio = median(whole.ratios)
        name = f"rounds of {model}, {examples * length:,} tokens a user"
        yield row_of("gpu", name, ROUND, seconds, ratio_to_floor=ratio, details={"goal": _GOAL})


def large_base(device: str, quick: bool) -> Iterator[Row]:
    """Measure adapters on a frozen 4-bit base of 8 B random parameters."""
    model, users, examples, length = (
        ("llama-tiny-nf4-lora", 4, 2, 16) if quick else ("llama-8b-nf4-lora", 16, 8, _LENGTH)
    )
    name = f"{model}, {examples * length:,} tokens a user"
    case = Case("uls", model, users, examples, length, device, name, "bfloat16", "sdpa")
    sizes = (4,) if quick else (16, 32)
    yield from case_rows(case, None, sizes, (1, 1) if quick else (3, 1), compiles=False)


def case_rows(
    case: Case,
    goal: float | None,
    batch_sizes: tuple[int, ...],
    repetitions: tuple[int, int],
    *,
    compiles: bool = True,
) -> list[Row]:
    """Return the rows of a case, compared with arithmetic at 40 % utilisation.

    Args:
        case: the case to measure.
        goal: maximum for auto's ratio to the floor, or None.
        batch_sizes: candidates for the floor, which uses the fastest.
        repetitions: see `measured`.
        compiles: see `StrongFloor`.
    """
    gc.collect()  # free the previous case's engines and their buffers
    torch.cuda.empty_cache()
    rows = measured(case, [AUTO], batch_sizes, repetitions, compiles=compiles)
    model = network(case.model, case.sequence_length, case.device, case.attention)
    parameters = model.num_parameters
    operations = (4 if case.model.endswith("-lora") else 6) * parameters
    peak = peak_of(torch.cuda.get_device_name()) if case.device != "cpu" else None
    goals = {STRONG: _GOAL, ROUND: _GOAL} | ({} if goal is None else {AUTO: goal})
    found: list[Row] = []
    for row in rows:
        rate = operations * row["details"]["tokens_per_second"]
        more: dict[str, Any] = {"teraflops_per_second": rate / 1e12, "precision": case.precision}
        if peak is not None:
            more["of_arithmetic"] = rate / (_UTILISATION * peak)
        more |= {"goal": goals[row["engine"]]} if row["engine"] in goals else {}
        found.append({**row, "benchmark": "gpu", "details": row["details"] | more})
    return found


def peak_of(gpu: str) -> float | None:
    """Return the operations per second of a GPU by its name, or None if unknown.

    Examples:
        >>> peak_of("NVIDIA H100 80GB HBM3"), peak_of("NVIDIA A100-SXM4-80GB")
        (989000000000000.0, None)
    """
    return next((peak for name, peak in _PEAKS.items() if name in gpu), None)


def workers(device: str, quick: bool) -> Iterator[Row]:
    """Measure sums by one Ray worker, by two that share a GPU, and by a collective.

    Raises:
        NotMeasured: this version of fedsim lacks a config key.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        data = small_data(folder).model_dump(exclude_none=True)
        model: dict[str, Any] = {"pretraining_steps": 0}
        if not quick:
            save_random(CONFIGS["gpt2-small"], folder / "base")
            model = {"name_or_path": str(folder / "base"), "lora_rank": LORA_RANK}
            data = {"sequence_length": _LENGTH, "cutting": "join"}
        raw = {
            "data": data,
            "model": model,
            "strategy": {"rounds": 2, "cohort_size": 8.0, "group_size": 3 if quick else 16},
            "privacy": {"noise_multiplier": 1.0, "delta": 1e-3, "noise": "seeded"},
        }
        shared: dict[str, Any] = {"grid": "ray", "precision": "bfloat16"}
        shared["gpus_per_worker"] = 0.0 if device == "cpu" else 0.5
        cases: dict[str, dict[str, Any]] = {
            "1 worker": {"workers": 1},
            "2 workers": {"workers": 2},
            "2 workers, collective": {"workers": 2, "reduce": "collective"},
        }
        missing = ""
        for by, keys in reversed(cases.items()):  # the newest case first
            try:
                config = parse_config({**raw, "executor": {**shared, **keys}})
            except ConfigError as error:
                missing = str(error)
                continue
            yield _shared_row(by, config, 1 if quick else 5)
            if quick:
                break
        if missing:
            raise NotMeasured(missing)


def _shared_row(by: str, config: Config, repetitions: int) -> Row:
    """Return the seconds of one round's sum over the users with the most text."""
    materials = materials_of(config, device="cpu")
    plan = build_plan(config, materials)
    parameters, sizes = materials.model.initial_parameters(), materials.split.user_sizes
    cohort = np.sort(np.argsort(sizes)[-_SHARED:]).astype(np.int64)
    with open_grid(config.executor) as grid:
        executor = build_executor(config, materials, plan, grid, "cpu")
        seconds = repeated(lambda: executor.clipped_sum(parameters, cohort, CLIP, 0), repetitions)
    details = {"users_per_second": len(cohort) / median(seconds)}
    return row_of("gpu", "workers of half a GPU", by, seconds, details=details)

"""Times on a device: private rounds over training without privacy, and workers that share a GPU.

Operations are counted as usual (Kaplan et al. 2020): a token costs 2 for each of P weights
forward and 4 backward; with all but adapters frozen, backward needs no products for the frozen
weights' gradients, which leaves 2 + 2. Attention's own products are not counted.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fedsim.config import ModelConfig
from fedsim.data.config import DataConfig
from fedsim.experiments.benchmarks.engines.cases import Case
from fedsim.experiments.benchmarks.engines.measured import AUTO, ROUND, STRONG, measured
from fedsim.experiments.benchmarks.engines.networks import CONFIGS, LORA_RANK, network
from fedsim.experiments.benchmarks.gpu.checks import small_data
from fedsim.experiments.benchmarks.grids.compute_bound import throughput
from fedsim.experiments.benchmarks.server.large_round import save_random
from fedsim.experiments.benchmarks.timing import Row
from fedsim.grids.records import ClientSpec
from fedsim.plan import TaskSpec

log = logging.getLogger(__name__)

_LENGTH = 128
# Users, their examples, and how many times the floor's seconds the private sum may take.
_COHORTS = ((64, 16, 1.03), (1024, 1, 1.10))
_GOAL = 1.05  # of the floor to the strong floor, and of a round to its gradients
_MODELS = {
    "GPT-2 small, adapters": "gpt2-small-lora",
    "350 M, all parameters": "gpt2-medium",
    "GPT-2 medium, adapters": "gpt2-medium-lora",
}
_BATCH_SIZES, _REPETITIONS = (128, 256), (5, 2)

_PEAKS = {"H100": 989e12, "H200": 989e12}  # operations a second in dense bfloat16: data sheets
_UTILISATION = 0.4


def ratios(device: str, quick: bool, only: str = "") -> Iterator[Row]:
    """Measure each model's rows by users of 2,048 tokens and of 128: bfloat16, fused attention.

    Args:
        device: in torch's spelling.
        quick: one tiny case.
        only: what the names of the cases to measure have in them.

    Raises:
        RuntimeError: one could not be measured, the others are; or there was none.
    """
    if quick:
        case = Case("uls", "tiny-gpt", 4, 2, 16, device, "tiny-gpt, 32 tokens", "bfloat16", "sdpa")
        yield from case_rows(case, _COHORTS[0][2], (4, 8), (1, 1), compiles=False)
        return
    failed, names = [], []
    for shown, model in _MODELS.items():
        for users, examples, goal in _COHORTS:
            name = f"{shown}, {examples * _LENGTH:,} tokens a user"
            names.append(name)
            if only not in name:
                continue
            case = Case("uls", model, users, examples, _LENGTH, device, name, "bfloat16", "sdpa")
            try:
                yield from case_rows(case, goal, _BATCH_SIZES, _REPETITIONS)
            except RuntimeError as error:  # no memory, for one
                log.exception("%s", name)
                failed.append(f"{name}: {type(error).__name__}: {error}")
    network.cache_clear()  # the next section wants the memory
    if not any(only in name for name in names):
        raise RuntimeError(f"no case has {only!r} in its name; there are {'; '.join(names)}")
    if failed:
        raise RuntimeError("; ".join(failed))


def case_rows(
    case: Case,
    goal: float,
    batch_sizes: tuple[int, ...],
    repetitions: tuple[int, int],
    *,
    compiles: bool = True,
) -> list[Row]:
    """Return the rows of a case beside what arithmetic at 40 % utilisation would give.

    Args:
        case: what to compute.
        goal: what auto's ratio to the floor should be at most.
        batch_sizes: the floor takes the fastest of.
        repetitions: see `measured`.
        compiles: see `StrongFloor`.
    """
    gc.collect()  # engines of the case before, and their buffers
    torch.cuda.empty_cache()
    rows = measured(case, [AUTO], batch_sizes, repetitions, compiles=compiles)
    model = network(case.model, case.sequence_length, case.device, case.attention)
    parameters = model.num_parameters
    operations = (4 if case.model.endswith("-lora") else 6) * parameters
    peak = peak_of(torch.cuda.get_device_name()) if case.device != "cpu" else None
    goals = {AUTO: goal, STRONG: _GOAL, ROUND: _GOAL}
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
    """Return the operations a second of a GPU by its name, or None where it is not known.

    Examples:
        >>> peak_of("NVIDIA H100 80GB HBM3"), peak_of("NVIDIA A100-SXM4-80GB")
        (989000000000000.0, None)
    """
    return next((peak for name, peak in _PEAKS.items() if name in gpu), None)


def workers(device: str, quick: bool) -> Iterator[Row]:
    """Measure rounds of one and of two Ray workers that have half of a GPU each."""
    with TemporaryDirectory() as folder:
        model, name = ModelConfig(pretraining_steps=0), "tiny-gpt"
        if not quick:
            name = "GPT-2 small, adapters"
            save_random(CONFIGS["gpt2-small"], Path(folder))
            model = ModelConfig(name_or_path=folder, lora_rank=LORA_RANK)
        spec = ClientSpec(
            seed=0,
            data=small_data(Path(folder))
            if quick
            else DataConfig(sequence_length=_LENGTH, cutting="join"),
            model=model,
            task=TaskSpec(name="fedsgd", options={"group_size": 1 if quick else 16}),
            engine="auto",
            device=device,
            precision="bfloat16",
        )
        found = throughput(
            spec,
            cohort_size=8 if quick else 64,
            gpus=0.0 if device == "cpu" else 0.5,
            repetitions=1 if quick else 5,
        )
    for row in found:
        yield {**row, "benchmark": "gpu", "case": f"{name}: workers of half a GPU"}

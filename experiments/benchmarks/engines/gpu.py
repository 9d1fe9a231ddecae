"""Fine-tuning of large models on a GPU: users, tokens and floating-point operations a second.

Operations are counted as usual (Kaplan et al. 2020): a token costs 2 for each of N weights
forward and 4 backward; with all but adapters frozen, backward needs no products for the frozen
weights' gradients, which leaves 2 + 2. Attention's own products are not counted.
"""

from __future__ import annotations

import torch

from fedsim.config import Precision
from fedsim.experiments.benchmarks.engines.cases import Case
from fedsim.experiments.benchmarks.engines.measured import measured
from fedsim.experiments.benchmarks.engines.networks import network
from fedsim.utils.machine import Row

_USERS, _GROUP_SIZE, _LENGTH = 64, 16, 128  # 1024 sequences, as Chua et al. 2024, Table 12
_BATCH_SIZES = (64, 128, 256, 512)
_REPETITIONS = (7, 3)
_MODELS = {
    "gpu/gpt2-small-lora": "gpt2-small-lora",
    "gpu/gpt2-medium-lora": "gpt2-medium-lora",
    "gpu/350m-full": "gpt2-medium",
}
_PRECISIONS: dict[str, Precision] = {"": "float32", "/bfloat16": "bfloat16"}
_CASES = [
    Case(
        "uls",
        model,
        _USERS,
        _GROUP_SIZE,
        _LENGTH,
        device="cuda",
        shown=name + suffix,
        precision=precision,
    )
    for name, model in _MODELS.items()
    for suffix, precision in _PRECISIONS.items()
]


def gpu_rows() -> list[Row]:
    """Return each case's rows, in float32 and in bfloat16, or one that says why there is none."""
    if torch.cuda.is_available():
        return [row for case in _CASES for row in case_rows(case, _BATCH_SIZES, _REPETITIONS)]
    absent = {"not_measured": "no CUDA device"}
    return [
        Row(benchmark="engines", case=case.name, engine="auto", seconds=None, details=absent)
        for case in _CASES
    ]


def case_rows(case: Case, batch_sizes: tuple[int, ...], repetitions: tuple[int, int]) -> list[Row]:
    """Return floor and auto with the operations that a second was worth."""
    rows = measured(case, ["auto"], batch_sizes, repetitions)
    model = network(case.model, case.sequence_length, case.device)
    factor = 4 if case.model.endswith("-lora") else 6
    for row in rows:
        operations = factor * model.num_parameters * row["details"]["tokens_per_second"]
        row["details"] |= {
            "teraflops_per_second": operations / 1e12,
            "formula": f"{factor} * {model.num_parameters} parameters * tokens per second",
            "dtype": case.precision,
            "device": torch.cuda.get_device_name() if case.device == "cuda" else case.device,
        }
    return rows

"""Times of gradient engines over the floor: ULS, ELS and local training."""

from __future__ import annotations

import logging

from fedsim.experiments.benchmarks.engines.cases import Case
from fedsim.experiments.benchmarks.engines.engine_memory import memory_rows
from fedsim.experiments.benchmarks.engines.measured import ROUND, STRONG, measured
from fedsim.experiments.benchmarks.timing import Row

log = logging.getLogger(__name__)

_TINY, _LSTM, _LORA = "tiny-gpt", "mcmahan-lstm", "gpt2-small-lora"
_SMOL, _LONG = "smollm2-135m-lora", 512  # tokens
_GROUP_SIZES = (1, 4, 16)
_LOCAL_STEPS = 4

CASES = (
    *(Case("uls", model, 64, size) for model in (_TINY, _LSTM) for size in _GROUP_SIZES),
    # Few users: two cores take a second for about 250 tokens of GPT-2 small.
    Case("uls", _LORA, 8, 1),
    Case("uls", _LORA, 4, 4),
    Case("els", _TINY, 64),
    Case("els", _LSTM, 64),
    Case("els", _LORA, 8),
    Case("fedavg", _TINY, 64, _LOCAL_STEPS),
    Case("fedavg", _LSTM, 64, _LOCAL_STEPS),
    Case("uls-ragged", _TINY, 64, 16),
    Case("uls", _SMOL, 2, 1, _LONG, shown=f"uls/{_SMOL}/{_LONG} tokens, sdpa", attention="sdpa"),
)


def run() -> list[Row]:
    """Return every case's times, then peak memory."""
    rows: list[Row] = []
    for case in CASES:
        of_case = measured(case)
        rows += of_case
        # All cases together take minutes, so show each as soon as it is finished.
        log.info("%s: %s", case.name, ", ".join(map(_ratio, of_case[1:])))
    return [*rows, *memory_rows()]


def _ratio(row: Row) -> str:
    """Return a text with one of the row's ratios; see `measured`."""
    if row["engine"] == STRONG:
        way = "compiled" if row["details"]["compiled"] else "not compiled"
        return f"floor / strong floor {row['ratio']:.2f} ({way})"
    name = "round / gradients" if row["engine"] == ROUND else f"{row['engine']} / floor"
    return f"{name} {row['ratio_to_floor']:.2f}"

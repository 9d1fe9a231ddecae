"""Chua et al. 2024, App. C, Table 8: full fine-tuning and LoRA adapters of several ranks.

Fewer parameters mean less total noise, but less capacity. `tiny-gpt` has 1 M parameters, so a rank
is a larger share of it than of GPT-2.

The paper finds that adapters and full fine-tuning are close without privacy, and that the rank has
little influence (GPT-2, Enron and BookSum).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from fedsim.experiments.studies.common.series import picture
from fedsim.experiments.studies.common.trained import Trained, base, cell
from fedsim.sweep.cells import Cell, parse_variation

EPSILONS = (1, 8)
WAYS = {
    "full": ("model.trainable=all",),
    **{f"rank {rank}": ("model.trainable=all", f"model.lora_rank={rank}") for rank in (4, 16, 32)},
}


def grid(quick: bool) -> Iterator[Cell]:
    """Yield ULS with all parameters, and with adapters of each rank."""
    for epsilon, way in product(EPSILONS[-1:] if quick else EPSILONS, WAYS):
        if quick and way in ("rank 16", "rank 32"):
            continue
        cohort = f"strategy.cohort_size={8 if quick else 64}"
        config = base(cohort, f"privacy.epsilon={epsilon}", *WAYS[way])
        settings = {"epsilon": epsilon, "parameters": way}
        yield cell("uls", settings, config, quick)


run = Trained(
    name="lora-rank",
    title="Full fine-tuning against adapters",
    explanation=__doc__,
    cells=grid,
    draw=picture(
        "parameters", "epsilon", "", "Held-out loss: all parameters, and adapters by rank"
    ),
    keys=[parse_variation("server.learning_rate=0.1,0.5,2.0", "--tune")],
    seeds=2,
)

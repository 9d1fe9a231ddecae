"""Chua et al. 2024, Tables 3, 5 and 6: loss by the number of records that a user contributes.

k records a user in Group Privacy (Algorithm 1) and User-wise DP-SGD (Algorithm 2, here `uls`),
with `els`, which is Algorithm 1 priced by the mixture-of-Gaussians accountant, between them. A
round draws 64 units on average: examples, or users whose k records are averaged, so `uls` computes
up to k times more.

The paper finds small k better for Group Privacy at small ε, large k always better for User-wise
DP-SGD, and User-wise DP-SGD in front, the more so at small ε. It has no row for the mixture
accountant (`els`), which came later.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from fedsim.experiments.studies.common.series import picture
from fedsim.experiments.studies.common.trained import Trained, base, cell
from fedsim.sweep.cells import Cell, parse_variation

EPSILONS, RECORDS = (1, 8), (1, 2, 4, 8)
SIZES = {"group-privacy": "batch_size", "els": "batch_size", "uls": "cohort_size"}


def grid(quick: bool) -> Iterator[Cell]:
    """Yield three strategies with 1 to 8 records a user."""
    for strategy, epsilon, records in product(
        SIZES, EPSILONS[-1:] if quick else EPSILONS, RECORDS[:2] if quick else RECORDS
    ):
        config = base(
            f"strategy={{name='{strategy}', rounds=12, {SIZES[strategy]}={8 if quick else 64}, "
            f"group_size={records}, clip={{kind='flat', l2_clip_norm=0.5, normalise=true}}}}",
            f"privacy.epsilon={epsilon}",
        )
        settings = {"epsilon": epsilon, "records": records}
        yield cell(strategy, settings, config, quick)


run = Trained(
    name="records-per-user",
    title="How many records a user contributes",
    explanation=__doc__,
    cells=grid,
    draw=picture("records", "epsilon", "source", "Held-out loss against the records of a user"),
    keys=[parse_variation("server.learning_rate=0.15,0.5", "--tune")],
    seeds=2,
)

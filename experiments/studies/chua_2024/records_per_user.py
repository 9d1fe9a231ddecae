"""Chua et al. 2024, Tables 3, 5 and 6: loss by the number of records that a user contributes.

The study compares k records per user in Group Privacy (Algorithm 1), User-wise DP-SGD (Algorithm 2,
here `uls`) and `els` (Algorithm 1 with the mixture-of-Gaussians accountant). A round samples 64
units on average: examples, or users with the average of k records. So `uls` computes up to k times
as much.

The paper finds small k better for Group Privacy at small ε, and large k always better for User-wise
DP-SGD. User-wise DP-SGD is better, especially at small ε. The paper has no row for the mixture
accountant (`els`), which came later.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

from fedsim.experiments.studies.common.options import ON_A_FILE, OnText, Options
from fedsim.experiments.studies.common.series import picture
from fedsim.experiments.studies.common.trained import Trained, cell
from fedsim.sweep.cells import Cell, parse_variation

EPSILONS, RECORDS, ROUNDS = (1, 8), (1, 2, 4, 8), 12
SIZES = {"group-privacy": "batch_size", "els": "batch_size", "uls": "cohort_size"}


def grid(quick: bool, options: Options) -> Iterator[Cell]:
    """Yield three strategies with 1 to 8 records per user."""
    epsilons, counts = (EPSILONS[-1:], RECORDS[:2]) if quick else (EPSILONS, RECORDS)
    rounds, units = options.rounds or ROUNDS, 8 if quick else 64
    for strategy, epsilon, records in product(SIZES, options.epsilons or epsilons, counts):
        config = options.base(
            f"strategy={{name='{strategy}', rounds={rounds}, {SIZES[strategy]}={units}, "
            f"group_size={records}, clip={{kind='flat', l2_clip_norm=0.5, normalise=true}}}}",
            f"privacy.epsilon={epsilon}",
        )
        settings = {"epsilon": f"{epsilon:g}", "records": records}
        yield cell(strategy, settings, config, quick)


def study(options: Options) -> Trained:
    """Return the study of the built-in texts, or of a file."""
    return Trained(
        name="records-per-user",
        title="How many records a user contributes",
        explanation=__doc__,
        cells=partial(grid, options=options),
        draw=picture("records", "epsilon", "source", "Held-out loss against the records of a user"),
        keys=[parse_variation("server.learning_rate=0.15,0.5", "--tune")],
        seeds=2,
    )


run = OnText(study, takes=("epsilons", *ON_A_FILE))

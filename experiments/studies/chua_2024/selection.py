"""Chua et al. 2024, §4.1 and §5.1, Tables 2, 4 and 7: rules that select a user's records.

The study runs Group Privacy (Algorithm 1 with black-box group privacy) and User-wise DP-SGD
(Algorithm 2, here `uls`) with two records per user, chosen by each rule. Perplexity is that of the
starting model. Both sample about 96 units per round: examples in the former; users, with the
average of their two records, in the latter.

The paper finds the longest sequences best for Group Privacy on Enron and no rule best on BookSum,
and random chunks best for User-wise DP-SGD on both.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from fedsim.experiments.studies.common.series import picture
from fedsim.experiments.studies.common.trained import Trained, base, cell
from fedsim.sweep.cells import Cell, parse_variation

RULES = ("random", "longest", "shortest", "highest-perplexity", "lowest-perplexity")
EPSILONS = (1, 8)
SIZES = {"group-privacy": "batch_size", "uls": "cohort_size"}


def grid(quick: bool) -> Iterator[Cell]:
    """Yield Group Privacy and User-wise DP-SGD with every selection rule that they support."""
    for strategy, epsilon in product(SIZES, EPSILONS[-1:] if quick else EPSILONS):
        rules = RULES if strategy == "group-privacy" else (*RULES, "random-chunk")
        for rule in rules[:2] if quick else rules:
            config = base(
                f"strategy={{name='{strategy}', rounds=12, {SIZES[strategy]}={8 if quick else 96}, "
                f"group_size=2, selection='{rule}', "
                "clip={kind='flat', l2_clip_norm=0.5, normalise=true}}",
                f"privacy.epsilon={epsilon}",
                "data.cutting=truncate",
            )
            settings = {"epsilon": epsilon, "selection": rule}
            yield cell(strategy, settings, config, quick)


run = Trained(
    name="selection",
    title="Which of a user's records to train on",
    explanation=__doc__,
    cells=grid,
    draw=picture("selection", "epsilon", "source", "Held-out loss by selection"),
    keys=[parse_variation("server.learning_rate=0.15,0.5", "--tune")],
    seeds=2,
)

"""How far a model overfits to its users, and whether attacks follow (Kandpal et al. 2023, Fig. 3).

Users, not texts: both losses are on text that was never trained on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import spearmanr

from fedsim.attacks.roc import auroc
from fedsim.attacks.samples import Known, Sides
from fedsim.attacks.schema import Checkpoint
from fedsim.attacks.statistics import LogRatios
from fedsim.data.store import Indices, runs
from fedsim.evaluation.scoring import ExampleScores


def after_round(
    round: int,
    *,
    known: Known,
    sides: Sides,
    before: ExampleScores,
    after: ExampleScores,
    samples: int,
) -> Checkpoint:
    """Return the attack by the mean, and the losses of both sides, on one state of the model.

    Args:
        round: of the state.
        known: whose samples were scored.
        sides: who is attacked.
        before: the samples' scores under the reference.
        after: the same under the state.
        samples: how many of each user's samples the attack uses; the losses are of all.
    """
    ratios = LogRatios(before.nats - after.nats, known.offsets)
    inside, outside = (
        ratios.of(users).statistic("mean", samples) for users in (sides.inside, sides.outside)
    )
    loss_in, loss_out = (_loss(known, users, after) for users in (sides.inside, sides.outside))
    return Checkpoint(
        round=round,
        auroc=auroc(inside, outside),
        loss_in=loss_in,
        loss_out=loss_out,
        gap=loss_out - loss_in,
    )


def rank_correlation(states: Sequence[Checkpoint]) -> float | None:
    """Return Spearman's correlation of gap and AUROC; None for fewer than three, or equal ones."""
    gaps, areas = [state.gap for state in states], [state.auroc for state in states]
    if len(states) < 3 or len(set(gaps)) == 1 or len(set(areas)) == 1:
        return None
    return float(spearmanr(gaps, areas).statistic)


def _loss(known: Known, users: Indices, scores: ExampleScores) -> float:
    """Return the nats a predicted token of all samples of these users."""
    places = runs(known.offsets[users], known.counts[users])
    return float(scores.nats[places].sum() / np.maximum(scores.tokens[places].sum(), 1))

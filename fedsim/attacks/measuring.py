"""Measure an attack: statistics of log ratios, ROC of each, and overfitting of each checkpoint.

The log ratio of a sample x is log p_θ(x) - log p_ref(x). Each term is the log-likelihood of the
whole sequence, summed over its predicted tokens. A user's statistic is the mean, the largest or the
smallest log ratio of the user's samples (Kandpal et al. 2023, §3, eq. 4, and Table 6). Both losses
of the gap (Figure 3) are on text outside the training data.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, get_args

import numpy as np
from scipy.stats import spearmanr

from fedsim.attacks.roc import Measure, Scores, auroc, bootstrap, roc_curve
from fedsim.attacks.roc import true_positive_rate as rate_at
from fedsim.attacks.samples import AttackSamples, MemberSplit
from fedsim.data.store import Indices, runs
from fedsim.evaluation.scoring import ExampleScores
from fedsim.report.attack_report import (
    Checkpoint,
    Curve,
    Group,
    Measured,
    Operating,
    Statistic,
)
from fedsim.seeding import stream

STATISTICS: tuple[Statistic, ...] = get_args(Statistic)


class LogRatios(NamedTuple):
    """The log ratios of users' samples in nats; user i has values[offsets[i] : offsets[i + 1]]."""

    values: Scores
    offsets: Indices

    def __call__(self, users: Indices, samples: int) -> Scores:
        """Return the log ratios of the first samples of some users, (users, samples)."""
        ratios: Scores = self.values[self.offsets[users][:, None] + np.arange(samples)]
        return ratios


FALSE_POSITIVE_RATES = (0.001, 0.005, 0.01, 0.05, 0.1)  # Kandpal et al. 2023, Table 4
RESAMPLES = 100  # as Kandpal et al. 2023, Figure 5


def measure_group(
    name: str, sides: MemberSplit, ratios: LogRatios, samples: Sequence[int], seed: int
) -> Group:
    """Attack the users of both sides.

    Args:
        name: "users", "canaries" or "listeners".
        sides: the attacked users; all have at least `max(samples)` samples.
        ratios: log ratios of all users; `sides` has indices into them.
        samples: numbers of samples per user for the attacker; the largest is the headline.
        seed: seed of the bootstrap.
    """
    inside, outside = (ratios(users, max(samples)) for users in (sides.inside, sides.outside))
    settings = [
        (statistic, number)
        for number in sorted(set(samples), reverse=True)
        for statistic in (STATISTICS if number > 1 else STATISTICS[:1])  # equal for one sample
    ]
    measured, curves = [], []
    for which, number in settings:
        scores = statistic(which, inside[:, :number]), statistic(which, outside[:, :number])
        measured.append(measure(which, number, *scores, seed))
        if number == max(samples):
            false, true = roc_curve(*scores)
            curves.append(
                Curve(
                    statistic=which,
                    false_positive_rates=tuple(false.tolist()),
                    true_positive_rates=tuple(true.tolist()),
                )
            )
    return Group.model_validate(
        {
            "name": name,
            "users_in": len(inside),
            "users_out": len(outside),
            "left_out_in": sides.left_out_in,
            "left_out_out": sides.left_out_out,
            "measured": measured,
            "curves": curves,
        }
    )


def statistic(which: Statistic, ratios: Scores) -> Scores:
    """Return each user's statistic over (users, samples) log ratios, (users,)."""
    result: Scores = getattr(ratios, which)(axis=1)
    return result


def measure(which: Statistic, samples: int, inside: Scores, outside: Scores, seed: int) -> Measured:
    """Measure how well scores separate the two sides, with an interval for each number."""
    measures: list[Measure] = [
        auroc,
        *(partial(rate_at, false_positive_rate=rate) for rate in FALSE_POSITIVE_RATES),
    ]
    # All statistics use the same resamples, so that resampling adds no difference between them.
    generator = stream(seed, "attack", 1)
    first, *others = bootstrap(measures, inside, outside, generator, RESAMPLES)
    operating = []
    for rate, interval in zip(FALSE_POSITIVE_RATES, others, strict=True):
        known = rate * len(outside) >= 1.0 - 1e-9
        operating.append(
            Operating(
                false_positive_rate=rate,
                true_positive_rate=rate_at(inside, outside, rate) if known else None,
                interval=(interval.low, interval.high) if known else None,
            )
        )
    return Measured(
        statistic=which,
        samples=samples,
        auroc=auroc(inside, outside),
        auroc_interval=(first.low, first.high),
        auroc_stddev=first.stddev,
        operating=tuple(operating),
    )


def after_round(
    round: int,
    *,
    known: AttackSamples,
    sides: MemberSplit,
    before: ExampleScores,
    after: ExampleScores,
    samples: int,
) -> Checkpoint:
    """Return the attack by the mean, and the losses of both sides, on one state of the model.

    Args:
        round: round of the state.
        known: the scored samples.
        sides: the attacked users.
        before: the samples' scores under the reference.
        after: the samples' scores under the state.
        samples: number of samples per user in the attack; the losses use all samples.
    """
    ratios = LogRatios(before.nats - after.nats, known.offsets)
    inside, outside = (ratios(users, samples).mean(1) for users in (sides.inside, sides.outside))
    loss_in, loss_out = (_loss(known, users, after) for users in (sides.inside, sides.outside))
    return Checkpoint(
        round=round,
        auroc=auroc(inside, outside),
        loss_in=loss_in,
        loss_out=loss_out,
        gap=loss_out - loss_in,
    )


def rank_correlation(states: Sequence[Checkpoint]) -> float | None:
    """Return Spearman's correlation of gap and AUROC; None for < 3 states or constant values."""
    gaps, areas = [state.gap for state in states], [state.auroc for state in states]
    if len(states) < 3 or len(set(gaps)) == 1 or len(set(areas)) == 1:
        return None
    return float(spearmanr(gaps, areas).statistic)


def _loss(known: AttackSamples, users: Indices, scores: ExampleScores) -> float:
    """Return the loss over all samples of these users, in nats per predicted token."""
    places = runs(known.offsets[users], known.counts[users])
    return float(scores.nats[places].sum() / np.maximum(scores.tokens[places].sum(), 1))

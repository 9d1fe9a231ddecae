"""From log ratios to numbers: an attack on one group of users, with every statistic and m."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from fedsim.attacks.roc import Interval, Measure, Scores, auroc, bootstrap, roc_curve
from fedsim.attacks.roc import true_positive_rate as rate_at
from fedsim.attacks.samples import Sides
from fedsim.attacks.schema import Curve, Group, Measured, Operating
from fedsim.attacks.statistics import STATISTICS, LogRatios, Statistic
from fedsim.seeding import stream

FALSE_POSITIVE_RATES = (0.001, 0.005, 0.01, 0.05, 0.1)  # Kandpal et al. 2023, Table 4
RESAMPLES = 100  # as Kandpal et al. 2023, Figure 5


def measure_group(
    name: str, sides: Sides, ratios: LogRatios, samples: Sequence[int], seed: int
) -> Group:
    """Attack the users of both sides.

    Args:
        name: "users" or "canaries".
        sides: who is attacked; all of them have `max(samples)` samples.
        ratios: of the users that `sides` has the indices of.
        samples: how many of each user's samples the attacker uses; the largest is the headline.
        seed: of the bootstrap.
    """
    chosen = np.concatenate([sides.inside, sides.outside])
    some = ratios.of(chosen)
    count = len(sides.inside)
    settings = [
        (statistic, number)
        for number in sorted(set(samples), reverse=True)
        for statistic in (STATISTICS if number > 1 else STATISTICS[:1])  # of one they are equal
    ]
    measured, curves = [], []
    for statistic, number in settings:
        scores = some.statistic(statistic, number)
        inside, outside = scores[:count], scores[count:]
        measured.append(measure(statistic, number, inside, outside, seed))
        if number == max(samples):
            curves.append(_curve(statistic, inside, outside))
    return Group.model_validate(
        {
            "name": name,
            "users_in": len(sides.inside),
            "users_out": len(sides.outside),
            "left_out_in": sides.left_out_in,
            "left_out_out": sides.left_out_out,
            "measured": measured,
            "curves": curves,
        }
    )


def measure(
    statistic: Statistic, samples: int, inside: Scores, outside: Scores, seed: int
) -> Measured:
    """Return how well scores tell the two sides apart, each number with its interval."""
    measures: list[Measure] = [
        auroc,
        *(partial(rate_at, false_positive_rate=rate) for rate in FALSE_POSITIVE_RATES),
    ]
    # The same resamples for every statistic: differences are then of the statistics alone.
    generator = stream(seed, "attack", 1)
    first, *others = bootstrap(measures, inside, outside, generator, RESAMPLES)
    return Measured(
        statistic=statistic,
        samples=samples,
        auroc=auroc(inside, outside),
        auroc_interval=(first.low, first.high),
        auroc_stddev=first.stddev,
        operating=tuple(
            _operating(rate, inside, outside, interval)
            for rate, interval in zip(FALSE_POSITIVE_RATES, others, strict=True)
        ),
    )


def _operating(rate: float, inside: Scores, outside: Scores, interval: Interval) -> Operating:
    if rate * len(outside) < 1.0 - 1e-9:
        return Operating(false_positive_rate=rate, true_positive_rate=None, interval=None)
    return Operating(
        false_positive_rate=rate,
        true_positive_rate=rate_at(inside, outside, rate),
        interval=(interval.low, interval.high),
    )


def _curve(statistic: Statistic, inside: Scores, outside: Scores) -> Curve:
    false, true = roc_curve(inside, outside)
    return Curve(
        statistic=statistic,
        false_positive_rates=tuple(false.tolist()),
        true_positive_rates=tuple(true.tolist()),
    )

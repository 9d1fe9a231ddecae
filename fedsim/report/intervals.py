"""Student's 95 % intervals over seeds, for a mean and for the difference between two arms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import variance

from scipy.stats import t as student

from fedsim.report.schema import NotNegative, Number, Record

CONFIDENCE = 0.95


class Interval(Record):
    """A mean over seeds with Student's confidence interval; with one seed, all three are equal."""

    mean: Number
    low: Number
    high: Number


class Difference(Record):
    """The first arm's loss minus the second arm's, over their common seeds.

    Attributes:
        first: name of the first arm.
        second: name of the second arm.
        seeds: seeds with all rounds and a finite loss in both arms.
        loss: mean of the seeds' differences, with the paired interval.
        unpaired: half the width of Student's interval for two independent samples of the same
            losses; 0 for one seed.
        clear: whether the paired interval excludes zero; False for one seed.
    """

    first: str
    second: str
    seeds: tuple[int, ...]
    loss: Interval
    unpaired: NotNegative
    clear: bool


def interval(values: Sequence[float]) -> Interval | None:
    """Return mean and 95 % interval of values, assumed independent and normal.

    Returns None without values. The interval of one value is that value.
    """
    count = len(values)
    if not count:
        return None
    mean = math.fsum(values) / count
    half = _quantile(count - 1) * math.sqrt(variance(values) / count) if count > 1 else 0.0
    return Interval(mean=mean, low=mean - half, high=mean + half)


def difference(
    first: str, second: str, losses: Mapping[int, float], others: Mapping[int, float]
) -> Difference | None:
    """Return the difference of two arms; None without a common seed.

    Args:
        first: name of the first arm.
        second: name of the second arm.
        losses: seed to loss of the first arm, all finite.
        others: seed to loss of the second arm, all finite.
    """
    seeds = tuple(seed for seed in losses if seed in others)
    loss = interval([losses[seed] - others[seed] for seed in seeds])
    if loss is None:
        return None
    unpaired, count = 0.0, len(seeds)
    if count > 1:
        spread = sum(variance([arm[seed] for seed in seeds]) for arm in (losses, others))
        unpaired = _quantile(2 * count - 2) * math.sqrt(spread / count)
    return Difference(
        first=first,
        second=second,
        seeds=seeds,
        loss=loss,
        unpaired=unpaired,
        clear=count > 1 and not loss.low <= 0.0 <= loss.high,
    )


def _quantile(freedom: int) -> float:
    return float(student.ppf((1 + CONFIDENCE) / 2, freedom))

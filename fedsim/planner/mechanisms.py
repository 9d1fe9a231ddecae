"""Samplers and correlated noise side by side: what each needs for one promise of ULS."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fedsim.errors import ConfigError
from fedsim.noise.matrix import INDEPENDENT, NoiseMatrix, banded_matrix, buffered_matrix
from fedsim.planner.budget import passes
from fedsim.planner.candidates import Candidate
from fedsim.sampling import (
    BalancedSampling,
    CyclicSampling,
    Relation,
    Sampling,
    TruncatedPoissonSampling,
)
from fedsim.strategy import noise_multiplier as calibrated

MOST_BANDS = 64  # weighed: more of them want as many copies of the parameters in memory
BUFFERS = 3
_COHORT = "strategy.cohort_size"
_ALIKE = 1.02  # times as many users: rounding to whole groups and passes, no merit


@dataclass(frozen=True)
class Mechanism:
    """A sampler and a matrix with the noise that keeps the promise.

    Attributes:
        name: such as "poisson" or "banded".
        settings: the config's keys that take it, as TOML; no other size of a cohort is given.
        cohort_size: expected users a round.
        noise_multiplier: σ.
        noise_stddev: of a coordinate, fresh in a round.
        sum_noise: root mean square, over the rounds, of the noise in the sum of all rounds so far.
        last_noise: the noise in the sum of all rounds.
    """

    name: str
    settings: tuple[str, ...]
    cohort_size: float
    noise_multiplier: float
    noise_stddev: float
    sum_noise: float
    last_noise: float


def mechanisms(one: Candidate) -> list[Mechanism]:
    """Return what each mechanism needs for the promise of a candidate, Poisson's first.

    Empty where the candidate is not one of users drawn by Poisson sampling. What has no proof
    under the relation or with the estimator, or that the accountant cannot certify with any noise,
    is left out.
    """
    plan, privacy = one.plan, one.config.privacy
    if plan.unit != "user" or plan.sampling.kind != "poisson" or privacy.epsilon is None:
        return []
    population = one.noise.size / plan.sampling.probability
    cohort = (f"{_COHORT} = {one.noise.size:.6g}",)
    found = [_made("poisson", cohort, one, plan.sampling, (INDEPENDENT, plan.noise_multiplier))]
    for name, settings, sampling, matrix in _others(one, population):
        if plan.estimator.unproved(sampling, plan.relation, 1) is not None:
            continue
        try:
            noise = calibrated(one.config, sampling, units_per_user=1)
        except ConfigError:
            continue
        found.append(_made(name, settings, one, sampling, (matrix, noise)))
    bands = [each for each in found if each.name == "banded"]
    best = min(bands, key=lambda each: each.sum_noise, default=None)
    return [each for each in found if each.name != "banded" or each is best]


def recommended(found: list[Mechanism]) -> str:
    """Return which has the least noise in the sums of rounds, and why, as a sentence.

    Of those with hardly more users a round than Poisson sampling has: more gradients also lower
    the noise, whatever the mechanism.
    """
    first = found[0]
    alike = [each for each in found if each.cohort_size <= _ALIKE * first.cohort_size]
    best = min(alike, key=lambda each: each.sum_noise)
    if best is first:
        return (
            "No other mechanism with as many users a round has less noise in the sums of rounds "
            "than Poisson sampling."
        )
    sized = any(setting.startswith(_COHORT) for setting in best.settings)
    instead = "" if sized else f", without {_COHORT}"
    return (
        f"Less noise for the same promise and as many users a round: {best.name}, "
        f"{best.sum_noise / first.sum_noise:.2g} times Poisson's in the sums of rounds, which "
        "under SGD is the noise of the parameters "
        f"(with Adam it is a guide): {'; '.join(best.settings)}{instead}."
    )


def _others(
    one: Candidate, population: float
) -> Iterator[tuple[str, tuple[str, ...], Sampling, NoiseMatrix]]:
    size, rounds = one.noise.size, one.config.strategy.rounds
    share = size / population
    cohort = f"{_COHORT} = {size:.6g}"
    if one.plan.relation is not Relation.REPLACE:
        cap = min(math.ceil(size + 3.0 * math.sqrt(size)), round(population))
        yield (
            "truncated-poisson",
            (cohort, _sampling("truncated-poisson", "max_cohort_size", cap)),
            TruncatedPoissonSampling(share, cap, round(population)),
            INDEPENDENT,
        )
        balanced = BalancedSampling(rounds, passes(rounds, share))
        yield (
            "balanced",
            (_sampling("balanced", "participations", balanced.participations),),
            balanced,
            INDEPENDENT,
        )
    if not one.plan.clip_policy.constant:
        return
    most = min(rounds, int(1.0 / share + 1e-9))
    groups = 2
    while groups <= min(most, MOST_BANDS):
        yield (
            "banded",
            ('privacy.mechanism = "banded"', cohort, _sampling("cyclic", "groups", groups)),
            CyclicSampling(rounds, groups, min(1.0, share * groups)),
            banded_matrix(rounds, groups),
        )
        groups *= 2
    if most > 1:
        yield (
            "blt",
            ('privacy.mechanism = "blt"', _sampling("cyclic", "groups", most)),
            CyclicSampling(rounds, most, 1.0),
            buffered_matrix(rounds, most, BUFFERS),
        )


def _sampling(kind: str, key: str, value: int) -> str:
    return f'strategy.sampling = {{ kind = "{kind}", {key} = {value} }}'


def _made(
    name: str,
    settings: tuple[str, ...],
    one: Candidate,
    sampling: Sampling,
    noise: tuple[NoiseMatrix, float],
) -> Mechanism:
    """Return the mechanism, its noise in proportion to that of the candidate's plan."""
    plan, rounds = one.plan, one.config.strategy.rounds
    matrix, sigma = noise
    size = one.noise.size * sampling.probability / plan.sampling.probability
    stddev = one.noise.stddev * sigma / plan.noise_multiplier * one.noise.size / size
    return Mechanism(
        name,
        settings,
        size,
        sigma,
        stddev * matrix.amplification,
        stddev * matrix.error_over(rounds),
        stddev * matrix.last_error_over(rounds),
    )

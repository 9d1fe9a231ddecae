"""Compare samplers and correlated noise: the noise of each at the same ε and δ of ULS."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fedsim.errors import ConfigError
from fedsim.noise.matrix import INDEPENDENT, NoiseMatrix, banded_matrix, buffered_matrix
from fedsim.parts import noise_multiplier as calibrated
from fedsim.planner.budget import passes
from fedsim.planner.candidates import Candidate
from fedsim.sampling import (
    BalancedSampling,
    CyclicSampling,
    Relation,
    Sampling,
    TruncatedPoissonSampling,
)

MOST_BANDS = 64  # each band needs one copy of the parameters in memory
BUFFERS = 3
_COHORT = "strategy.cohort_size"
_ALIKE = 1.02  # tolerated factor on users per round, from rounding to whole groups and passes

Variant = tuple[str, tuple[str, ...], Sampling, NoiseMatrix]


@dataclass(frozen=True)
class Mechanism:
    """A sampler and a noise matrix, with the noise for the target ε and δ.

    Attributes:
        name: name such as "poisson" or "banded".
        settings: config keys that select it, as TOML; leave out other cohort sizes.
        cohort_size: expected users per round.
        noise_multiplier: σ.
        noise_stddev: standard deviation of a round's fresh noise, per coordinate.
        sum_noise: root mean square, over the rounds, of the noise in the sum of all rounds so far.
        last_noise: standard deviation of the noise in the sum of all rounds.
    """

    name: str
    settings: tuple[str, ...]
    cohort_size: float
    noise_multiplier: float
    noise_stddev: float
    sum_noise: float
    last_noise: float


def mechanisms(one: Candidate) -> list[Mechanism]:
    """Return the noise of each mechanism at a candidate's ε and δ, Poisson sampling first.

    Returns [] unless the candidate draws users by Poisson sampling. Leaves out mechanisms without a
    proof for the relation or the estimator, and those that the accountant does not support.
    """
    plan, privacy = one.plan, one.config.privacy
    if plan.unit != "user" or plan.sampling.kind != "poisson" or privacy.epsilon is None:
        return []
    cohort = (f"{_COHORT} = {one.noise.size:.6g}",)
    poisson = ("poisson", cohort, plan.sampling, INDEPENDENT)
    results = [_mechanism(one, poisson, plan.noise_multiplier)]
    for variant in _variants(one, cohort[0]):
        sampling = variant[2]
        if plan.estimator.unproved(sampling, plan.relation, 1) is not None:
            continue
        try:
            results.append(
                _mechanism(one, variant, calibrated(one.config, sampling, units_per_user=1))
            )
        except ConfigError:
            continue
    bands = [each for each in results if each.name == "banded"]
    best = min(bands, key=lambda each: each.sum_noise, default=None)
    return [each for each in results if each.name != "banded" or each is best]


def recommended(found: list[Mechanism]) -> str:
    """Return a sentence on the mechanism with the least accumulated noise.

    Leaves out mechanisms that draw more users per round than Poisson sampling, because more
    gradients lower the noise of any mechanism.
    """
    poisson = found[0]
    alike = [each for each in found if each.cohort_size <= _ALIKE * poisson.cohort_size]
    best = min(alike, key=lambda each: each.sum_noise)
    if best is poisson:
        return (
            "With as many users per round, Poisson sampling accumulates the least noise over the "
            "rounds of all mechanisms."
        )
    sized = any(setting.startswith(_COHORT) for setting in best.settings)
    instead = "" if sized else f", without {_COHORT}"
    return (
        f"Less noise at the same ε and δ, with as many users per round: {best.name} accumulates "
        f"{100.0 * (1.0 - best.sum_noise / poisson.sum_noise):.2g} % less noise than Poisson "
        "sampling (with SGD, accumulated noise is the noise of the parameters; with Adam it is a "
        f"guide): {'; '.join(best.settings)}{instead}."
    )


def _variants(one: Candidate, cohort: str) -> Iterator[Variant]:
    """Yield all mechanisms except Poisson sampling."""
    size, rounds, share = one.noise.size, one.config.strategy.rounds, one.plan.sampling.probability
    keys: tuple[str, ...]
    if one.plan.relation is not Relation.REPLACE:
        population = round(size / share)
        cap = min(math.ceil(size + 3.0 * math.sqrt(size)), population)
        truncated = TruncatedPoissonSampling(share, cap, population)
        keys = (cohort, _sampling("truncated-poisson", "max_cohort_size", cap))
        yield "truncated-poisson", keys, truncated, INDEPENDENT
        balanced = BalancedSampling(rounds, passes(rounds, share))
        keys = (_sampling("balanced", "participations", balanced.participations),)
        yield "balanced", keys, balanced, INDEPENDENT
    if not one.plan.clip_policy.constant:
        return
    max_groups = min(rounds, int(1.0 / share + 1e-9))
    for groups in (2**power for power in range(1, MOST_BANDS.bit_length())):
        if groups <= max_groups:
            keys = ('privacy.mechanism = "banded"', cohort, _sampling("cyclic", "groups", groups))
            cyclic = CyclicSampling(rounds, groups, min(1.0, share * groups))
            yield "banded", keys, cyclic, banded_matrix(rounds, groups)
    if max_groups > 1:
        keys = ('privacy.mechanism = "blt"', _sampling("cyclic", "groups", max_groups))
        matrix = buffered_matrix(rounds, max_groups, BUFFERS)
        yield "blt", keys, CyclicSampling(rounds, max_groups, 1.0), matrix


def _sampling(kind: str, key: str, value: int) -> str:
    return f'strategy.sampling = {{ kind = "{kind}", {key} = {value} }}'


def _mechanism(one: Candidate, variant: Variant, noise_multiplier: float) -> Mechanism:
    """Return the mechanism, with its noise scaled from that of the candidate's plan."""
    name, settings, sampling, matrix = variant
    plan, rounds = one.plan, one.config.strategy.rounds
    size = one.noise.size * sampling.probability / plan.sampling.probability
    stddev = one.noise.stddev * noise_multiplier / plan.noise_multiplier * one.noise.size / size
    return Mechanism(
        name,
        settings,
        size,
        noise_multiplier,
        stddev * matrix.amplification,
        stddev * matrix.error_over(rounds),
        stddev * matrix.last_error_over(rounds),
    )

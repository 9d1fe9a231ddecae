"""ULS against ELS from public numbers alone, where there are no gradients to look at.

Of the gradients only one number is supposed: how diverse those of one user are. If any two of a
user's example gradients have length L and cosine 1 - D, the mean of G of them has length
L √(1 - D + D/G): alike (D = 0) it is L, orthogonal (D = 1) L/√G, the two extremes of
Charles et al. 2024, §3. Everybody is supposed to have as many examples as a round asks for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.errors import ConfigError
from fedsim.planner.compare_strategies import START_COHORT
from fedsim.planner.doubling import Doubling, Point, estimate_and_double
from fedsim.planner.noise import Noise, Recommendation, recommend
from fedsim.sampling import PoissonSampling

ALIKE, DIVERSE = 0.0, 1.0


@dataclass(frozen=True)
class Numbers:
    """The public numbers of a plan.

    Attributes:
        users: N >= 2.
        median_size: examples of the median user, G_ELS.
        max_size: examples that the largest user has; G_ULS does not grow beyond it.
        epsilon: of the promise.
        delta: of the promise.
        rounds: T.
        budget: B, expected gradients a round.

    Raises:
        ConfigError: a number out of range, or a budget that so many users cannot meet.
    """

    users: int
    median_size: int
    max_size: int
    epsilon: float
    delta: float
    rounds: int
    budget: float

    def __post_init__(self) -> None:
        for option, value, least in (
            ("--users", self.users, 2),
            ("--median-size", self.median_size, 1),
            ("--max-size", self.max_size, self.median_size),
            ("--rounds", self.rounds, 1),
        ):
            if value < least:
                raise ConfigError(f"{option} = {value}: give an integer >= {least}")
        most = self.users * self.median_size
        if not 0.0 < self.budget <= most:
            raise ConfigError(
                f"--budget = {self.budget:g}: give a number above 0, at most {most}, the "
                f"examples of {self.users} users with --median-size {self.median_size} each"
            )


@dataclass(frozen=True)
class Scenario:
    """The plan for one supposed diversity of gradients; lengths are in units of L_ELS."""

    gradient_diversity: float
    els: Noise
    uls: Noise
    doublings: tuple[Doubling, ...]
    recommendation: Recommendation


def scenario(numbers: Numbers, gradient_diversity: float) -> Scenario:
    """Return both strategies' noise for one D, with Poisson sampling under add-or-remove-one.

    Raises:
        ConfigError: D outside [0, 1], or a promise that no noise keeps.
    """
    if not 0.0 <= gradient_diversity <= 1.0:
        raise ConfigError(
            f"--gradient-diversity = {gradient_diversity}: give a number in [0, 1]; 0: a user's "
            "gradients are alike, 1: orthogonal"
        )

    def norm(group_size: int) -> float:
        return math.sqrt(1.0 - gradient_diversity + gradient_diversity / group_size)

    def noise_multiplier(cohort_size: float) -> float:
        return _noise_multiplier(numbers, cohort_size / numbers.users, 1)

    smallest = 1  # the group size with which everybody together has B gradients
    while smallest * numbers.users < numbers.budget:
        smallest = min(2 * smallest, numbers.max_size)
    point, doublings = estimate_and_double(
        math.ceil(numbers.budget),
        norm,
        noise_multiplier,
        start=Point(smallest, min(START_COHORT, numbers.users)),
        largest=Point(numbers.max_size, numbers.users),
    )
    size = numbers.budget / point.group_size
    uls_sigma = noise_multiplier(size)
    uls_norm = norm(point.group_size)
    uls = Noise(
        strategy="uls",
        group_size=point.group_size,
        size=size,
        noise_multiplier=uls_sigma,
        l2_clip_norm=uls_norm,
        stddev=uls_sigma * uls_norm / size,
    )
    els = _els(numbers)
    return Scenario(gradient_diversity, els, uls, doublings, recommend(els, uls))


def _els(numbers: Numbers) -> Noise:
    budget, each = numbers.budget, numbers.median_size
    sigma = _noise_multiplier(numbers, budget / (each * numbers.users), each)
    return Noise("els", each, budget, sigma, 1.0, sigma / budget)


def _noise_multiplier(numbers: Numbers, probability: float, units_per_user: int) -> float:
    return calibrate_noise_multiplier(
        sampling=PoissonSampling(probability),
        units_per_user=units_per_user,
        rounds=numbers.rounds,
        epsilon=numbers.epsilon,
        delta=numbers.delta,
    )

"""One sampler on the mean-estimation task: calibrated, swept over clip and learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import torch

from experiments.studies.mean_simulation import Population, make_plan, simulate
from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.accounting.planning import equal_compute_probability
from fedsim.sampling import PoissonSampling

Errors = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sampler:
    """ELS, or ULS with a group size.

    Attributes:
        level: "example" or "user": what a coin is flipped on.
        group_size: G.
    """

    level: str
    group_size: int

    @property
    def label(self) -> str:
        """What tables and pictures call it."""
        return "ELS" if self.level == "example" else f"ULS, G = {self.group_size}"

    @property
    def units_per_user(self) -> int:
        """Units of the pool that one user owns."""
        return self.group_size if self.level == "example" else 1

    def law(self, budget: int, num_users: int) -> PoissonSampling:
        """Return the coins at which a round takes `budget` gradients in expectation.

        Raises:
            ConfigError: there are not as many.
        """
        return PoissonSampling(
            equal_compute_probability(
                gradients_per_round=budget, group_size=self.group_size, num_users=num_users
            )
        )

    def noise_multiplier(
        self, budget: int, num_users: int, *, epsilon: float, delta: float, rounds: int
    ) -> float:
        """Return σ at that budget: by the pld accountant, or the mixture for examples."""
        return calibrate_noise_multiplier(
            sampling=self.law(budget, num_users),
            units_per_user=self.units_per_user,
            rounds=rounds,
            epsilon=epsilon,
            delta=delta,
        )


@dataclass(frozen=True)
class Grid:
    """What is swept: clip norms, and learning rates on the scale of the normalised clip."""

    clip_norms: Sequence[float]
    learning_rates: Sequence[float]

    @property
    def settings(self) -> list[tuple[float, float]]:
        """All pairs."""
        return [*product(self.clip_norms, self.learning_rates)]


@dataclass(frozen=True, eq=False)
class Sweep:
    """What came of a sweep.

    Attributes:
        noise_multiplier: σ.
        grid: what was swept.
        errors: (trials, settings), squared distances of the estimates to μ.
    """

    noise_multiplier: float
    grid: Grid
    errors: Errors

    def best(self, trials: slice = slice(None)) -> int:
        """Return the setting with the least mean error over some of the trials."""
        return int(self.errors[trials].mean(axis=0).argmin())

    @property
    def errors_of_best(self) -> Errors:
        """(trials,), of the setting that is best over the same trials, as the paper reports."""
        return self.errors[:, self.best()]

    @property
    def errors_of_second_half(self) -> Errors:
        """(trials/2,), of the second half of the trials at the setting best on the first."""
        half = len(self.errors) // 2
        return self.errors[half:, self.best(slice(half))]

    @property
    def at_edge(self) -> bool:
        """Whether a better learning rate may lie outside the grid."""
        rates = self.grid.learning_rates
        return self.grid.settings[self.best()][1] in {min(rates), max(rates)}


def run_sweeps(
    population: Population,
    sampler: Sampler,
    budget: int,
    grid: Grid,
    *,
    epsilons: Sequence[float],
    delta: float,
    rounds: int,
    seed: int,
) -> list[Sweep]:
    """Return the sweep at each ε, all on the same draws.

    Raises:
        ConfigError: a budget that the population cannot make.
    """
    users, owned = population.num_users, population.examples_per_user
    if sampler.level == "example" and sampler.group_size != owned:
        raise ValueError(f"group_size = {sampler.group_size}: ELS pools all {owned} examples here")
    law = sampler.law(budget, users)
    sigmas = [
        sampler.noise_multiplier(budget, users, epsilon=epsilon, delta=delta, rounds=rounds)
        for epsilon in epsilons
    ]
    plans = [
        make_plan(
            law,
            group_size=sampler.group_size if sampler.level == "user" else None,
            pool_size=users * sampler.units_per_user,
            units_per_user=sampler.units_per_user,
            noise_multiplier=sigma,
            l2_clip_norm=clip_norm,
            learning_rate=rate,
            seed=seed,
        )
        for sigma in sigmas
        for clip_norm, rate in grid.settings
    ]
    estimates = simulate(population, plans, rounds)
    misses = estimates - torch.from_numpy(population.means)[:, None, :]
    errors = misses.square().sum(dim=2).double().numpy().reshape(len(misses), len(epsilons), -1)
    return [Sweep(sigma, grid, errors[:, i]) for i, sigma in enumerate(sigmas)]

"""Charles et al. 2024, App. E: simulate mean estimation, with sweeps of clip and learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import torch

from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.clipping import FlatClip, NormalisedClip
from fedsim.estimators import FixedDenominator
from fedsim.noise.gaussian import release_
from fedsim.plan import RoundPlan, TaskSpec
from fedsim.sampling import PoissonSampling
from fedsim.seeding import stream
from fedsim.server_optimizer import ServerOptimizer

Array = npt.NDArray[np.float32]
BETWEEN_USERS = 1.0  # σ₁
_BLOCK = 8  # trials clipped at once; intermediate results fit in a cache


@dataclass(frozen=True, eq=False)
class Population:
    """Means and examples of all trials.

    Attributes:
        means: (trials, d) float32, the μ of each trial, to be estimated.
        examples: (trials, users, K, d) float32.
        averages: (trials, users, d) float32, mean of all K examples of a user.
    """

    means: Array
    examples: Array
    averages: Array


def draw_population(
    shape: tuple[int, int, int, int], within_user_stddev: float, seed: int
) -> Population:
    """Draw μ ~ N(0, I), μ_u ~ N(μ, σ₁² I) and x ~ N(μ_u, σ₂² I), with σ₁ = 1.

    Args:
        shape: (trials, users, K, d).
        within_user_stddev: σ₂ >= 0. Populations that differ only in σ₂ have the same μ and μ_u.
        seed: seed of the draws.
    """
    trials, users, _, dimension = shape
    source = np.random.default_rng(seed)
    means = source.standard_normal((trials, dimension), dtype=np.float32)
    centres = source.standard_normal((trials, users, 1, dimension), dtype=np.float32)
    centres = means[:, None, None, :] + BETWEEN_USERS * centres
    examples = source.standard_normal(shape, dtype=np.float32)
    examples *= np.float32(within_user_stddev)
    examples += centres
    return Population(means, examples, examples.mean(axis=2))


def make_plan(
    sampling: PoissonSampling,
    *,
    group_size: int | None,
    pool_size: int,
    units_per_user: int,
    noise_multiplier: float,
    l2_clip_norm: float,
    learning_rate: float,
    seed: int,
) -> RoundPlan:
    """Return the plan of one setting; plans of a sweep differ only in clip, step and noise.

    Args:
        sampling: sampling of units.
        group_size: G of ULS; None for ELS, where a unit is an example.
        pool_size: number of units that are sampled from.
        units_per_user: 1 in ULS, G in ELS.
        noise_multiplier: σ.
        l2_clip_norm: clip norm of a unit's gradient, which is then divided by it (App. F), so one
            range of learning rates suits all clip norms.
        learning_rate: learning rate of SGD, on that normalised scale.
        seed: seed of coins, groups and noise.
    """
    return RoundPlan(
        strategy="els" if group_size is None else "uls",
        unit="example" if group_size is None else "user",
        pool=np.arange(pool_size, dtype=np.int64),
        sampling=sampling,
        task=TaskSpec(name="mean-estimation", options={"group_size": group_size}),
        clip=NormalisedClip(clip=FlatClip(l2_clip_norm=l2_clip_norm)),
        estimator=FixedDenominator(sampling.probability, pool_size),
        noise_multiplier=noise_multiplier,
        units_per_user=units_per_user,
        optimizer=ServerOptimizer("sgd", learning_rate),
        seed=seed,
        entropy="seeded",
    )


def unit_values(
    population: Population, units: npt.NDArray[np.int64], plan: RoundPlan, round: int
) -> Array:
    """Return (len(units), d): examples, or averages of a random group of a user's examples.

    Args:
        population: population of all trials.
        units: indices of users, or examples, counted over all trials.
        plan: plan, whose task has G; a group is a uniform subset, newly drawn in each round.
        round: round number, from 0.
    """
    size, dimension = plan.task.options["group_size"], population.examples.shape[-1]
    if size is None:
        return population.examples.reshape(-1, dimension)[units]
    owned = population.examples.shape[2]
    if size == owned:
        return population.averages.reshape(-1, dimension)[units]
    keys = stream(plan.seed, "selection", round).random((len(units), owned), dtype=np.float32)
    chosen = np.argpartition(keys, size - 1, axis=1)[:, :size] + units[:, None] * owned
    values = population.examples.reshape(-1, dimension)[chosen.ravel()]
    return np.asarray(values.reshape(len(units), size, dimension).mean(axis=1))


def simulate(population: Population, plans: Sequence[RoundPlan], rounds: int) -> torch.Tensor:
    """Return (trials, len(plans), d): the estimate of each plan after `rounds` rounds from 0.

    The loss of an example is half the squared distance to it. One trial draws from `plan.cohort`
    and `plan.noise`; several trials share one draw of coins over all their units.
    """
    first, trials = plans[0], len(population.examples)
    # The clip multiplies short updates, including zero, by its largest factor 1/C.
    zero = {"estimate": torch.zeros(1)}
    largest = torch.tensor([plan.clip.factors(zero)["estimate"] for plan in plans])[:, None]
    scale = first.estimator.sensitivity(1.0)  # 1/(qW)
    stddev = torch.tensor([plan.noise_stddev for plan in plans])[:, None]
    rate = torch.tensor([plan.optimizer.learning_rate for plan in plans])[:, None]
    dimension = population.examples.shape[-1]
    estimate = torch.zeros(trials, len(plans), dimension)
    count = trials * len(first.pool)
    coins = first.draws.coins(np.arange(count, dtype=np.uint64))
    for round in range(rounds):
        units = first.sampling.draw(count, round, coins)
        values, present = _by_trial(
            unit_values(population, units, first, round), units // len(first.pool), trials
        )
        zeros = {"estimate": torch.zeros(trials * dimension, dtype=torch.float64)}
        noise, _ = release_(zeros, 1.0, 1.0, first.draws.noise(round))
        blocks = [slice(start, start + _BLOCK) for start in range(0, trials, _BLOCK)]
        sums = [clipped_sum(estimate[b], values[b], present[b], largest) for b in blocks]
        release = torch.cat(sums).mul_(scale)
        release += stddev * noise["estimate"].float().view(trials, 1, dimension)
        estimate -= rate * release
    return estimate


def clipped_sum(
    estimate: torch.Tensor, values: torch.Tensor, present: torch.Tensor, largest: torch.Tensor
) -> torch.Tensor:
    """Return Σ clip(θ - v) over the units of each trial, normalised, (trials, settings, d).

    Args:
        estimate: (trials, settings, d), θ.
        values: (trials, units, d), v.
        present: (trials, units), 1 for units, 0 for padding of trials with fewer units.
        largest: (settings, 1), 1/C: θ - v is multiplied by min(1/C, 1/‖θ - v‖).
    """
    squares = torch.baddbmm(
        estimate.square().sum(2, keepdim=True) + values.square().sum(2)[:, None, :],
        estimate,
        values.transpose(1, 2),
        alpha=-2.0,
    )
    factors = squares.clamp_min_(1e-12).rsqrt_().minimum(largest)
    factors *= present[:, None, :]
    return estimate * factors.sum(2, keepdim=True) - torch.bmm(factors, values)


def _by_trial(
    values: Array, trial: npt.NDArray[np.int64], trials: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values as (trials, most units, d), with a mask of real units; `trial` ascends."""
    counts = np.bincount(trial, minlength=trials)
    position = np.arange(len(trial)) - np.repeat(np.cumsum(counts) - counts, counts)
    width = max(int(counts.max()), 1)
    padded = np.zeros((trials, width, values.shape[1]), dtype=np.float32)
    present = np.zeros((trials, width), dtype=np.float32)
    padded[trial, position], present[trial, position] = values, 1.0
    return torch.from_numpy(padded), torch.from_numpy(present)


Errors = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sampler:
    """ELS, or ULS with a group size.

    Attributes:
        level: sampled unit, "example" or "user".
        group_size: group size G.
    """

    level: str
    group_size: int

    @property
    def label(self) -> str:
        """Name in tables and pictures."""
        return "ELS" if self.level == "example" else f"ULS, G = {self.group_size}"

    @property
    def units_per_user(self) -> int:
        """Number of units of one user in the pool."""
        return self.group_size if self.level == "example" else 1

    def sampling(self, budget: int, num_users: int) -> PoissonSampling:
        """Return the sampling with `budget` expected gradients per round."""
        return PoissonSampling(budget / (self.group_size * num_users))


@dataclass(frozen=True)
class Grid:
    """Swept settings: clip norms, and learning rates on the scale of the normalised clip."""

    clip_norms: Sequence[float]
    learning_rates: Sequence[float]

    @property
    def settings(self) -> list[tuple[float, float]]:
        """All pairs of clip norm and learning rate."""
        return [*product(self.clip_norms, self.learning_rates)]


@dataclass(frozen=True, eq=False)
class Sweep:
    """Results of a sweep.

    Attributes:
        noise_multiplier: σ.
        grid: the settings.
        errors: (trials, settings), squared distances of the estimates to μ.
    """

    noise_multiplier: float
    grid: Grid
    errors: Errors

    def best(self, trials: slice = slice(None)) -> int:
        """Return the index of the setting with the least mean error over some trials."""
        return int(self.errors[trials].mean(axis=0).argmin())

    @property
    def errors_of_best(self) -> Errors:
        """Errors, (trials,), of the best setting over the same trials, as in the paper."""
        return self.errors[:, self.best()]

    @property
    def errors_of_second_half(self) -> Errors:
        """Errors, (trials/2,), on the second half of trials, of the first half's best setting."""
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
    """Return the sweep at each ε, all with the same draws.

    Raises:
        ConfigError: the population is too small for the budget.
    """
    _, users, owned, _ = population.examples.shape
    if sampler.level == "example" and sampler.group_size != owned:
        raise ValueError(f"group_size = {sampler.group_size}: ELS pools all {owned} examples here")
    sampling = sampler.sampling(budget, users)
    sigmas = [
        calibrate_noise_multiplier(  # pld accountant for users, mixture for examples
            sampling=sampling,
            units_per_user=sampler.units_per_user,
            rounds=rounds,
            epsilon=epsilon,
            delta=delta,
        )
        for epsilon in epsilons
    ]
    plans = [
        make_plan(
            sampling,
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

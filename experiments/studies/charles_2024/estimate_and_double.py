"""Charles et al. 2024, App. I.1, Figures 11 to 13: strategies that choose group and cohort size.

The comparison uses the task of Appendix E instead of language models. A budget of B gradients per
round is split into group size G and expected cohort M, with G·M = B and powers of two.
Sub-optimality is the loss (squared distance to the mean) minus that of the best split of the
budget.

Estimate-and-Double doubles G or M, whichever leaves less noise: L(2G)/L(G) against σ(2M)/(2σ(M)),
see `fedsim/planner/doubling.py`. `as printed` compares with σ(2M)/σ(M), as Algorithm 3 is printed.
All strategies start at the smallest G and M. Max cohort and max group size double one to its limit
before the other; the greedy local oracle knows the loss after each of the two doublings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedsim.experiments.studies.charles_2024.doubling_analysis import (
    STRATEGIES,
    Excess,
    suboptimality,
)
from fedsim.experiments.studies.charles_2024.doubling_picture import (
    Compared,
    chosen,
    draw,
    shown,
)
from fedsim.experiments.studies.charles_2024.mean_simulation import (
    Errors,
    Grid,
    Population,
    Sampler,
    draw_population,
    run_sweeps,
)
from fedsim.experiments.studies.common.output import Result, Table, listed, steps, study

USERS, EXAMPLES_PER_USER, DIMENSION, DELTA = 512, 32, 32, 1e-6
SAMPLED_USERS = 128  # number of users for the estimate of L_ULS
RESAMPLES = 200
SEED = 11

Key = tuple[float, int, int]  # ε, G, M


@dataclass(frozen=True)
class Scale:
    """Size of the study."""

    trials: int
    rounds: int
    epsilons: tuple[float, ...]
    group_sizes: tuple[int, ...]
    cohort_sizes: tuple[int, ...]
    spreads: tuple[float, ...]
    grid: Grid


FULL = Scale(
    trials=24,
    rounds=256,
    epsilons=(1.0, 4.0, 16.0, 64.0),
    group_sizes=(1, 2, 4, 8, 16, 32),
    cohort_sizes=(32, 64, 128, 256, 512),
    spreads=(1.0, 4.0),
    grid=Grid((4.0, 16.0), tuple(2.0 ** (i / 2) for i in range(-10, 4))),
)
QUICK = Scale(
    trials=8,
    rounds=64,
    epsilons=(1.0, 16.0),
    group_sizes=(1, 2, 4, 8),
    cohort_sizes=(32, 64, 128),
    spreads=(4.0,),
    grid=Grid((4.0, 32.0), tuple(2.0**i for i in range(-4, 2))),
)


class Task(NamedTuple):
    """Losses of one population, the input of the analysis.

    Attributes:
        within_user_stddev: σ₂.
        errors: by (ε, G, M): (trials,), squared distances at the best setting of the sweep.
        noise_multipliers: noise multipliers by (ε, M).
        norms: for each trial, estimates of L_ULS(G) by G.
        at_edge: number of sweeps with the best learning rate on the edge of the grid.
    """

    within_user_stddev: float
    errors: dict[Key, Errors]
    noise_multipliers: dict[tuple[float, int], float]
    norms: list[dict[int, float]]
    at_edge: int

    def losses(self, trials: npt.NDArray[np.int64]) -> dict[Key, float]:
        """Return the mean error over these trials, by (ε, G, M)."""
        return {key: float(errors[trials].mean()) for key, errors in self.errors.items()}

    def excess(self, losses: dict[Key, float]) -> list[Excess]:
        """Return each strategy's sub-optimality, averaged over the trials' estimates of L_ULS."""
        estimates: list[Callable[[int], float]] = [norm.__getitem__ for norm in self.norms]
        return suboptimality(losses, estimates, lambda *key: self.noise_multipliers[key])


@study(
    "estimate-and-double",
    "How group and cohort size are chosen for ULS, on mean estimation",
    __doc__,
)
def run(quick: bool) -> Result:
    """Compute the losses of the grid, and compare the strategies."""
    scale = QUICK if quick else FULL
    tasks = [compute(scale, spread) for spread in scale.spreads]
    compared = [compare(task) for task in tasks]
    terms = (
        f"each loss is of an (ε, δ = {DELTA:g})-DP estimate, ε = {listed(scale.epsilons)}; unit: "
        f"user; neighbouring relation: add-or-remove-one user; {scale.rounds} rounds of Poisson "
        "sampling of users, pld accountant; clip, learning rate, G and M were chosen by looking "
        "at data, for which no ε accounts"
    )
    edges = sum(task.at_edge for task in tasks)
    sweeps = sum(len(task.errors) for task in tasks)
    return Result(
        settings=settings(scale, terms),
        notes=[
            f"In {edges} of {sweeps} sweeps the best learning rate is the least or largest tried."
        ],
        table=table(scale, compared),
        records=records(scale, compared),
        figure=draw(compared, terms),
    )


def compute(scale: Scale, spread: float) -> Task:
    """Return the losses of one population on the whole grid."""
    shape = (scale.trials, USERS, EXAMPLES_PER_USER, DIMENSION)
    population = draw_population(shape, spread, SEED)
    errors: dict[Key, Errors] = {}
    sigmas: dict[tuple[float, int], float] = {}
    at_edge = 0
    grid = [*product(scale.group_sizes, scale.cohort_sizes)]
    for group_size, cohort_size in steps(grid, f"estimate and double, σ₂ = {spread:g}"):
        sweeps = run_sweeps(
            population,
            Sampler("user", group_size),
            group_size * cohort_size,
            scale.grid,
            epsilons=scale.epsilons,
            delta=DELTA,
            rounds=scale.rounds,
            seed=SEED,
        )
        for epsilon, sweep in zip(scale.epsilons, sweeps, strict=True):
            errors[epsilon, group_size, cohort_size] = sweep.errors_of_best
            sigmas[epsilon, cohort_size] = sweep.noise_multiplier
            at_edge += sweep.at_edge
    return Task(spread, errors, sigmas, gradient_norms(population, scale.group_sizes), at_edge)


def gradient_norms(population: Population, group_sizes: tuple[int, ...]) -> list[dict[int, float]]:
    """Return L_ULS(G) of every trial: the median over 128 users of ‖mean gradient‖ at 0 (eq. 8)."""
    source = np.random.default_rng(SEED + 1)
    trials = []
    for examples in population.examples:
        users = source.choice(len(examples), min(SAMPLED_USERS, len(examples)), replace=False)
        shuffled = source.permuted(examples[users], axis=1)
        averages = {size: shuffled[:, :size].mean(axis=1) for size in group_sizes}
        norms = {size: np.linalg.norm(average, axis=1) for size, average in averages.items()}
        trials.append({size: float(np.median(values)) for size, values in norms.items()})
    return trials


def compare(task: Task) -> Compared:
    """Return every strategy's sub-optimality, and its resamples over trials."""
    source = np.random.default_rng(SEED + 2)
    trials = np.arange(len(task.norms))
    resampled = []
    for _ in range(RESAMPLES):
        losses = task.losses(source.choice(trials, len(trials)))
        resampled.append([row.suboptimality for row in task.excess(losses)])
    losses = task.losses(trials)
    rows = task.excess(losses)
    return Compared(f"σ₂ = {task.within_user_stddev:g}", losses, rows, np.array(resampled))


def settings(scale: Scale, terms: str) -> list[str]:
    """Return sentences on all fixed settings."""
    grid = scale.grid
    return [
        f"Terms: {terms}.",
        f"d = {DIMENSION}, N = {USERS} users with K = {EXAMPLES_PER_USER} examples, σ₁ = 1, σ₂ = "
        f"{' and '.join(f'{spread:g}' for spread in scale.spreads)}. Both σ₂ are larger than in "
        "Figure 7, so groups and cohorts both have room to double.",
        f"G = {listed(scale.group_sizes)}; M = "
        f"{listed(scale.cohort_sizes)}; strategies start at the least of both. {scale.trials} "
        "trials. L_ULS(G) is the median norm of the mean gradients of "
        f"{SAMPLED_USERS} users at the start. Each trial has its own estimate of it; losses of the "
        "strategies that use it are means over the trials.",
        f"Each loss is the best of a sweep: clip norms {listed(grid.clip_norms)}, with clipped "
        f"gradients divided by the clip norm, and {len(grid.learning_rates)} learning rates from "
        f"{grid.learning_rates[0]:.3g} to {grid.learning_rates[-1]:.3g} for gradients so scaled.",
        f"95 % intervals are from {RESAMPLES} bootstrap samples of the trials.",
        "Calibrated noise multipliers are rounded up to five digits.",
    ]


def table(scale: Scale, compared: list[Compared]) -> Table:
    """Return a row for every task and strategy: the mean over budgets, for each ε and over all."""
    epsilons = sorted({row.epsilon for row in compared[0].rows})
    rows = []
    for within, task in zip(scale.spreads, compared, strict=True):
        for strategy in STRATEGIES:
            cells = [task.interval(chosen(strategy, epsilon)) for epsilon in epsilons]
            values = [f"{cell.value:.4f}" for cell in cells]
            overall = shown(task.interval(chosen(strategy)))
            rows.append([f"{within:g}", strategy, *values, overall])
    heads = [f"ε = {epsilon:g}" for epsilon in epsilons]
    return Table(("σ₂", "mean sub-optimality of", *heads, "all ε"), rows)


def records(scale: Scale, compared: list[Compared]) -> list[dict[str, object]]:
    """Return the rows of table.csv: losses of points, then sub-optimality of strategies."""
    rows: list[dict[str, object]] = []
    for within, task in zip(scale.spreads, compared, strict=True):
        fixed: dict[str, object] = {"within_user_stddev": within}
        for (epsilon, size, cohort), loss in task.losses.items():
            split = {"strategy": "", "group_size": size, "cohort_size": cohort}
            budget = {"epsilon": epsilon, "budget": size * cohort}
            rows.append({**fixed, **budget, **split, "loss": loss, "suboptimality": ""})
        for row in task.rows:
            split = {"strategy": row.strategy, "group_size": "", "cohort_size": ""}
            budget = {"epsilon": row.epsilon, "budget": row.budget}
            losses = {"loss": row.best_loss + row.suboptimality, "suboptimality": row.suboptimality}
            rows.append({**fixed, **budget, **split, **losses})
    return rows

"""The vectorised mean-estimation task is fedsim's own round, and samples as it is accounted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from fedsim.accounting.accountants import epsilon
from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.execution import Accumulator, Keys, Update
from fedsim.experiments.studies.charles_2024.mean_simulation import (
    Grid,
    Population,
    Sampler,
    Sweep,
    clipped_sum,
    draw_population,
    make_plan,
    run_sweeps,
    simulate,
    unit_values,
)
from fedsim.experiments.studies.common.intervals import mean_interval, ratio_interval
from fedsim.plan import RoundPlan
from fedsim.runner.training import train
from fedsim.sampling import PoissonSampling
from fedsim.state import ServerState
from fedsim.tensors import Tensors

USERS, OWNED, DIMENSION = 12, 4, 3


class OneByOne:
    """An executor that takes the gradient of ½‖θ - v‖² of one unit after another."""

    def __init__(self, population: Population, plan: RoundPlan) -> None:
        self.population, self.plan, self.sizes = population, plan, list[int]()

    def clipped_sum(self, parameters: Tensors, cohort: Keys, clip: Clip, round: int) -> WeightedSum:
        self.sizes.append(len(cohort))
        total = Accumulator(parameters, clip)
        for value in unit_values(self.population, cohort, self.plan, round):
            gradient = {"estimate": parameters["estimate"] - torch.from_numpy(value)}
            total.add(Update(gradient, 0.0, 1), 1.0)
        return total.total()


def plans(group_size: int | None, settings: list[tuple[float, float]]) -> list[RoundPlan]:
    per_user = OWNED if group_size is None else 1
    return [
        make_plan(
            PoissonSampling(0.2),
            group_size=group_size,
            pool_size=USERS * per_user,
            units_per_user=per_user,
            noise_multiplier=0.7,
            l2_clip_norm=clip_norm,
            learning_rate=rate,
            seed=5,
        )
        for clip_norm, rate in settings
    ]


@pytest.mark.parametrize("group_size", [None, 1, 2, OWNED])
def test_every_setting_is_run_rounds(group_size: int | None) -> None:
    population = draw_population((1, USERS, OWNED, DIMENSION), 1.5, seed=3)
    settings = plans(group_size, [(0.5, 0.3), (2.0, 0.3), (100.0, 5.0)])
    found = simulate(population, settings, rounds=12)
    for index, plan in enumerate(settings):
        executor = OneByOne(population, plan)
        start = ServerState(0, {"estimate": torch.zeros(DIMENSION)})
        state = train(start, plan, executor, 12)
        torch.testing.assert_close(
            found[0, index], state.parameters["estimate"], rtol=1e-4, atol=1e-5
        )
        assert len(set(executor.sizes)) > 2  # drawn anew each round


def test_trials_do_not_see_each_other() -> None:
    """A trial's step, padded to the largest cohort, is what it is alone."""
    torch.manual_seed(0)
    estimate, values = torch.randn(3, 2, 4), 2 * torch.randn(3, 5, 4)
    present = torch.tensor([[1.0] * 5, [1.0, 1.0, 0, 0, 0], [0.0] * 5])
    largest = torch.tensor([[1.0], [0.25]])
    together = clipped_sum(estimate, values * present[..., None], present, largest)
    for trial, count in enumerate((5, 2, 0)):
        expected = torch.zeros(2, 4)
        for unit in range(count):
            gradient = estimate[trial] - values[trial, unit]
            norms = gradient.norm(dim=1, keepdim=True)
            expected += gradient * torch.minimum(largest, 1 / norms)
        torch.testing.assert_close(together[trial], expected)


def test_groups_are_subsets_of_the_users_own() -> None:
    population = draw_population((2, USERS, OWNED, 1), 0.0, seed=0)
    population.examples[:] = np.arange(2 * USERS * OWNED, dtype=np.float32).reshape(2, USERS, -1, 1)
    (plan,) = plans(2, [(1.0, 1.0)])
    units = np.repeat(np.arange(2 * USERS), 50)
    pairs = unit_values(population, units, plan, 0)[:, 0] - OWNED * units
    # of 0, 1, 2, 3 two different ones: means 0.5, 1, 1.5 (twice as often), 2, 2.5
    values, counts = np.unique(pairs, return_counts=True)
    assert values.tolist() == [0.5, 1.0, 1.5, 2.0, 2.5]
    expected = np.array([1, 1, 2, 1, 1]) / 6 * len(units)
    assert stats.chisquare(counts, expected).pvalue > 1e-3


def test_the_population_is_what_the_appendix_says() -> None:
    narrow, wide = (draw_population((40, 64, 8, 4), spread, seed=1) for spread in (0.0, 3.0))
    assert np.array_equal(narrow.means, wide.means)
    inner = wide.examples - narrow.examples
    assert inner.std() == pytest.approx(3.0, rel=0.02)
    assert (narrow.averages - narrow.means[:, None]).std() == pytest.approx(1.0, rel=0.02)
    assert narrow.means.std() == pytest.approx(1.0, rel=0.2)
    assert np.allclose(wide.averages, wide.examples.mean(2), atol=1e-5)


@pytest.mark.parametrize("sampler", [Sampler("example", OWNED), Sampler("user", 2)])
def test_a_sweep_is_calibrated_for_the_plan_that_runs(sampler: Sampler) -> None:
    population = draw_population((6, USERS, OWNED, DIMENSION), 1.0, seed=2)
    grid = Grid((4.0, 16.0), (0.1, 0.3))
    low, high = run_sweeps(
        population, sampler, 8, grid, epsilons=(1.0, 50.0), delta=1e-3, rounds=20, seed=1
    )
    assert low.errors.shape == (6, 4)
    assert low.noise_multiplier > high.noise_multiplier
    assert low.errors_of_best.mean() > high.errors_of_best.mean()
    sampling = sampler.sampling(8, USERS)
    assert sampling.probability == 8 / (sampler.group_size * USERS)
    cost = _plan(sampler, sampling, low.noise_multiplier).cost
    assert 0.998 <= epsilon(cost, 20, 1e-3) <= 1.0


def _plan(sampler: Sampler, sampling: PoissonSampling, noise_multiplier: float) -> RoundPlan:
    return make_plan(
        sampling,
        group_size=None if sampler.level == "example" else sampler.group_size,
        pool_size=USERS * sampler.units_per_user,
        units_per_user=sampler.units_per_user,
        noise_multiplier=noise_multiplier,
        l2_clip_norm=1.0,
        learning_rate=1.0,
        seed=0,
    )


def test_the_second_half_is_free_of_the_choice() -> None:
    errors = np.array([[1.0, 2.0], [1.0, 2.0], [9.0, 1.0], [9.0, 3.0]])
    sweep = Sweep(1.0, Grid((1.0,), (0.1, 0.2)), errors)
    assert sweep.best() == 1
    assert sweep.errors_of_best.tolist() == [2, 2, 1, 3]
    assert sweep.errors_of_second_half.tolist() == [9, 9]


def test_the_intervals_hold_what_they_say() -> None:
    source = np.random.default_rng(0)
    shared = source.standard_normal((2_000, 100))
    above = 6 + shared + 0.3 * source.standard_normal(shared.shape)
    below = 3 + 0.5 * shared + 0.3 * source.standard_normal(shared.shape)
    ratios = [ratio_interval(a, b) for a, b in zip(above, below, strict=True)]
    assert np.mean([i.low < 2 < i.high for i in ratios]) == pytest.approx(0.95, abs=0.02)
    means = [mean_interval(a) for a in above]
    assert np.mean([i.low < 6 < i.high for i in means]) == pytest.approx(0.95, abs=0.02)

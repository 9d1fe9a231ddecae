"""What one user can move through the filter, the noise on it, and what the accountant charges."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from scipy import stats

from fedsim.accounting.accountants import delta, epsilon
from fedsim.accounting.events import RoundCost
from fedsim.accounting.ledger import Ledger
from fedsim.accounting.privacy_filter import RenyiFilter, price
from fedsim.clipping import Clip, FlatClip
from fedsim.errors import ConfigError, HaltedError
from fedsim.estimators import WeightedSum
from fedsim.execution import Keys
from fedsim.experiments.studies.chua_2024.asi_liu.accountant import failure_probability
from fedsim.experiments.studies.chua_2024.asi_liu.filter import (
    Filtered,
    FilteredMean,
    concentration_score,
    distances,
    filter_weights,
)
from fedsim.experiments.studies.chua_2024.asi_liu.sampling import ConcentratedSampling, halting_test
from fedsim.plan import RoundPlan, TaskSpec
from fedsim.round import run_round
from fedsim.sampling import Relation
from fedsim.seeding import stream
from fedsim.server_optimizer import ServerOptimizer
from fedsim.state import ServerState
from fedsim.tensors import Tensors, scale

N, RADIUS = 600, 1.0
BOUND = FilteredMean(RADIUS, N).sensitivity(1.0)
EDGE = 100  # users who are near just so many others that each one more or less counts


def users_on_the_edge() -> torch.Tensor:
    """241 + 9 and 250 users at a distance of τ, and 100 who have only the first within 2τ."""
    left, right = torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0])
    edge = torch.tensor([0.0, 2.0])
    return torch.stack([left] * 250 + [right] * 250 + [edge] * EDGE)


def mean(gradients: torch.Tensor, weights: np.ndarray) -> np.ndarray:
    return np.asarray(weights @ gradients.double().numpy() / weights.sum())


def moved(before: torch.Tensor, after: torch.Tensor) -> float:
    first, second = (
        mean(rows, filter_weights(distances(rows), RADIUS)) for rows in (before, after)
    )
    return float(np.linalg.norm(first - second))


def replaced(before: torch.Tensor, user: int, by: tuple[float, float]) -> torch.Tensor:
    after = before.clone()
    after[user] = torch.tensor(by)
    return after


@pytest.mark.parametrize("user", [0, 300, 599])
@pytest.mark.parametrize("by", [(1.0, 0.0), (1.0, -2.0), (0.0, 2.0), (1e6, 1e6), (0.0, -1.9)])
def test_no_replaced_user_moves_the_mean_by_more_than_the_sensitivity(
    user: int, by: tuple[float, float]
) -> None:
    before = users_on_the_edge()
    assert concentration_score(distances(before), RADIUS) >= 2 * N / 3 + 1
    assert moved(before, replaced(before, user, by)) <= BOUND


def test_the_sensitivity_is_of_the_right_size() -> None:
    before = users_on_the_edge()
    most = max(
        moved(before, replaced(before, 0, by)) for by in [(1.0, -2.0), (0.0, 2.0), (1e6, 0.0)]
    )
    assert most > BOUND / 12


def test_a_filter_that_cuts_would_exceed_it() -> None:
    """All users at the edge change sides together: what the linear rise is there to prevent."""
    before = users_on_the_edge()
    after = replaced(before, 0, (1e6, 1e6))
    near = [np.count_nonzero(distances(rows) <= 2 * RADIUS, axis=1) for rows in (before, after)]
    cut = [(count >= near[0][-1]).astype(float) for count in near]
    difference = mean(before, cut[0]) - mean(after, cut[1])
    assert float(np.linalg.norm(difference)) > BOUND


@pytest.mark.parametrize("seed", range(20))
def test_random_neighbours_keep_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy(rng.normal(size=(60, 2)) * rng.uniform(0.15, 0.3))
    rows[: rng.integers(0, 9)] *= rng.uniform(2, 9)
    if concentration_score(distances(rows), RADIUS) < 2 * 60 / 3 + 1:
        pytest.skip("not concentrated")
    bound = FilteredMean(RADIUS, 60).sensitivity(1.0)
    for user in range(0, 60, 7):
        place = rng.normal(size=2) * rng.uniform(0, 4)
        assert moved(rows, replaced(rows, user, (place[0], place[1]))) <= bound


LAYOUT = {"wide": torch.zeros(100, 200), "bias": torch.zeros(20_000)}


class Planted:
    """Users who all answer alike, but every fifth with the opposite of `spread`."""

    def __init__(self, spread: float) -> None:
        self.spread = spread

    def clipped_sum(self, parameters: Tensors, cohort: Keys, clip: Clip, round: int) -> WeightedSum:
        (user,) = cohort
        sign = -1.0 if user % 5 == 0 else 1.0
        values = {k: torch.full_like(v, sign * self.spread).double() for k, v in parameters.items()}
        return WeightedSum(values, weight=1.0, num_units=1, num_gradients=2, loss=3.0)


def plan_of(num_users: int, test_epsilon: float, noise_multiplier: float) -> RoundPlan:
    test = halting_test(num_users, test_epsilon)
    return RoundPlan(
        strategy="asi-liu",
        unit="user",
        pool=np.arange(num_users),
        sampling=ConcentratedSampling(num_users, test_epsilon, 100),
        task=TaskSpec(name="fedsgd"),
        clip=FlatClip(l2_clip_norm=1.0),
        estimator=FilteredMean(RADIUS, num_users),
        noise_multiplier=noise_multiplier,
        units_per_user=1,
        relation=Relation.REPLACE,
        optimizer=ServerOptimizer("sgd", 1.0),
        entropy="seeded",
        wrapper=lambda executor, draws: Filtered(executor, test, RADIUS, draws),
    )


def test_released_noise_is_the_plans() -> None:
    plan = plan_of(20, 1e6, 0.8)
    after, record = run_round(ServerState(0, LAYOUT), plan, plan.around(Planted(0.0)))
    release = torch.cat([value.flatten() for value in after.parameters.values()]).numpy()
    assert plan.noise_stddev == pytest.approx(0.8 * 24 * RADIUS / 20)
    for factor, fits in ((1.0, True), (1.05, False), (0.95, False)):
        law = stats.norm(0.0, factor * plan.noise_stddev)
        assert (stats.kstest(release, law.cdf).pvalue > 1e-4) == fits
    assert (record.num_units, record.num_gradients, record.train_loss) == (20, 40, 3.0)


def test_outliers_have_no_part_in_the_mean() -> None:
    spread = 1.0  # 200 apart in norm: τ is 1
    plan = plan_of(20, 1e6, 0.0)
    filtered = Filtered(Planted(spread), halting_test(10, 1e6), RADIUS, plan.draws)
    total = filtered.clipped_sum(
        LAYOUT, np.arange(20), plan.clip, 0
    )  # a score of 13.6, halted below 8
    assert (total.weight, total.num_units) == (16.0, 20)
    for value in scale(total.values, plan.estimator.factor(total)).values():
        assert torch.equal(value, torch.full_like(value, spread))


def test_a_round_that_is_not_concentrated_halts_and_releases_nothing() -> None:
    plan = plan_of(20, 1e6, 1.0)  # the score is 13.6 of 20, the threshold 16
    state = ServerState(0, LAYOUT)
    with pytest.raises(HaltedError, match="round 0: the users' gradients are not concentrated"):
        run_round(state, plan, plan.around(Planted(1.0)))


def test_a_radius_that_distances_cannot_resolve_is_refused() -> None:
    """Users 3e-9 of their norm apart have a measured distance of 0."""
    close = torch.full((3, 2_000), 0.02, dtype=torch.float64)
    close[2, 0] += 3e-9
    assert distances(close).max() < 1e-7
    plan = plan_of(20, 1e6, 0.8)
    with pytest.raises(ValueError, match=r"radius = 1e-11: distances between updates of norm 1"):
        dataclasses.replace(plan, estimator=FilteredMean(1e-11, 20))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"estimator": FilteredMean(RADIUS, 10**6)}, "population of 20 with num_users = 1000000"),
        ({"relation": Relation.ADD_OR_REMOVE}, "a relation that is not replace-one"),
        ({"units_per_user": 2}, "several units per user"),
        ({"accountant": "rdp"}, "accountant = 'rdp'"),
    ],
)
def test_what_the_proof_does_not_cover_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(plan_of(20, 1e6, 0.8), **changes)


def test_epsilon_is_the_test_and_the_gaussians() -> None:
    law = ConcentratedSampling(2_000, 2.0, 100)
    cost, wrong = RoundCost(law, 30.0), failure_probability(law)
    assert 0 < wrong < 1e-9
    gaussian = float(dp_accounting.get_epsilon_gaussian(30.0 / math.sqrt(100), 1e-6 - wrong))
    total = epsilon(cost, 100, 1e-6)
    assert total == pytest.approx(2.0 + gaussian, rel=1e-3)
    assert total >= 2.0 + gaussian
    assert delta(cost, 100, total) <= 1e-6 * 1.01
    assert delta(cost, 100, 1.9) == 1.0
    charged = Ledger().charge(0, cost, "seeded:0").charge(1, cost, "seeded:0")
    assert Ledger.from_json(charged.to_json()) == charged
    assert charged.epsilon(1e-6) == total  # two rounds of it, or all
    with pytest.raises(ValueError, match="the price of 100 rounds pays for each of them once"):
        charged.charge(100, cost, "seeded:0")
    with pytest.raises(ValueError, match="the price of 100 rounds pays for each of them once"):
        charged.charge(2, cost, "secure:0")  # a threshold that is drawn again


def test_a_filter_charges_a_run_at_once() -> None:
    """By hand: ε of the test, the Gaussians' divergences, and β among the infinite losses."""
    law = ConcentratedSampling(2_000, 2.0, 100)
    cost = RoundCost(law, 30.0)
    asked = price(cost, Relation.REPLACE, 8.0)
    assert asked.renyi == pytest.approx(2.0 + 100 * 8.0 / (2 * 30.0**2))
    assert asked.infinite == failure_probability(law)
    rule = RenyiFilter(6.0, 1e-6, Relation.REPLACE, 8.0)
    assert rule.converted([(cost, 1)]) == rule.converted([(cost, 100)])
    assert rule.converted([(cost, 1)]) > epsilon(cost, 100, 1e-6)
    assert rule.pays_for([(cost, 100)])
    assert not rule.pays_for([(cost, 101)])  # a second run, with a second test
    unsure = RoundCost(ConcentratedSampling(300, 2.0, 100), 30.0)
    assert not rule.pays_for([(unsure, 1)])


def test_secret_noise_of_a_test_is_kept() -> None:
    """A resumed run has the same threshold."""
    secret = dataclasses.replace(plan_of(20, 2.0, 0.8), entropy="secure", seed=2**127 + 5)
    other = dataclasses.replace(secret, seed=2**127 + 6)
    addresses = [(secret, 0, 0), (secret, 0, 1), (secret, 1, 1), (other, 0, 0)]
    drawn = [list(plan.draws.part_source(*at).random(4)) for plan, *at in addresses]
    assert drawn == [list(plan.draws.part_source(*at).random(4)) for plan, *at in addresses]
    assert len({number for numbers in drawn for number in numbers}) == 16
    with pytest.raises(ValueError, match="must be a secret of 128 bits"):
        dataclasses.replace(secret, seed=5).draws.part_source(0, 0)


def test_the_probability_of_a_wrong_test_is_bounded() -> None:
    """Simulated with scores just too low, over 50 rounds; and the bound is not idle."""
    law = ConcentratedSampling(300, 1.5, 50)
    test, source = halting_test(300, 1.5), stream(0, "part")
    score, runs = 2 * 300 / 3 + 1, 2_000
    wrong = 0
    for _ in range(runs):
        threshold = test.noisy_threshold(source)
        wrong += any(test.passes(score, threshold, source) for _ in range(50))
    bound = failure_probability(law)
    assert wrong / runs <= bound
    assert bound < 40 * max(wrong, 1) / runs
    assert failure_probability(ConcentratedSampling(6, 1.5, 50)) == 1.0


@pytest.mark.parametrize("accountant", ["pld", "rdp", "moments", "mixture", "group-privacy"])
def test_no_other_accountant_takes_such_rounds(accountant: str) -> None:
    cost = RoundCost(ConcentratedSampling(2_000, 2.0, 10), 30.0)
    reason = "no (RDP|PLD) of 'concentrated'|accounts Poisson sampling only"
    with pytest.raises(ConfigError, match=reason):
        epsilon(cost, 10, 1e-6, accountant)
    with pytest.raises(ConfigError, match="needs a public number of users"):
        epsilon(cost, 10, 1e-6, None, Relation.ADD_OR_REMOVE)
    assert epsilon(cost, 10, 1e-300) == math.inf

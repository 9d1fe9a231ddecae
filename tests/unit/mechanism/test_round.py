"""A round releases, charges and steps once, or leaves everything as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsim.accounting.accountants import epsilon
from fedsim.accounting.budget import Budget
from fedsim.accounting.ledger import Ledger
from fedsim.clipping import Clip
from fedsim.errors import BudgetSpentError
from fedsim.estimators import FixedDenominator, WeightedSum
from fedsim.execution import Keys
from fedsim.noise.gaussian import Normals, grid_step
from fedsim.plan import RoundPlan
from fedsim.round import run_round
from fedsim.runner.training import train
from fedsim.sampling import PoissonSampling
from fedsim.server_optimizer import ServerOptimizer
from fedsim.state import RoundRecord, ServerState
from fedsim.tensors import Tensors, l2_norm, scale
from tests.unit.mechanism.test_plan import make_plan

ADAM = ServerOptimizer("adam", 0.1)


class Pull:
    """Each unit pulls the parameters towards its own number; remembers whom it was asked for."""

    def __init__(self) -> None:
        self.cohorts: list[Keys] = []

    def clipped_sum(self, parameters: Tensors, cohort: Keys, clip: Clip, round: int) -> WeightedSum:
        self.cohorts.append(cohort)
        total = WeightedSum.zero(parameters)
        for key in cohort:
            pull = {name: value.double() - key / 100 for name, value in parameters.items()}
            first = int(key == cohort[0])
            total += WeightedSum(pull, 1.0, 1, first, 3, 0.5 * (round + 1), num_unclipped=first)
        return total


class Broken:
    def clipped_sum(self, parameters: Tensors, cohort: Keys, clip: Clip, round: int) -> WeightedSum:
        raise RuntimeError("a shard is lost")


def start() -> ServerState:
    parameters = {"w": torch.linspace(-1, 1, 6).reshape(2, 3), "b": torch.tensor([0.3, -0.7])}
    return ServerState(0, parameters)


def same_bits(left: Tensors, right: Tensors) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(left[name], right[name]) for name in left
    )


def same_state(left: ServerState, right: ServerState) -> bool:
    return (
        left.round == right.round
        and same_bits(left.parameters, right.parameters)
        and same_bits(left.optimizer_state, right.optimizer_state)
        and same_bits(left.average, right.average)
        and left.ledger == right.ledger
        and left.clip_scale == right.clip_scale
    )


def copied(state: ServerState) -> ServerState:
    return ServerState(
        state.round,
        {name: value.clone() for name, value in state.parameters.items()},
        {name: value.clone() for name, value in state.optimizer_state.items()},
        state.ledger,
    )


def test_without_noise_sgd_at_rate_one_moves_by_minus_the_estimate() -> None:
    plan, pull, state = make_plan(noise_multiplier=0.0), Pull(), start()
    after, record = run_round(state, plan, pull)
    (cohort,) = pull.cohorts
    assert len(cohort) > 0
    estimate = {
        name: (len(cohort) * value.double() - float(cohort.sum()) / 100) / 5.0
        for name, value in state.parameters.items()
    }
    for name, value in state.parameters.items():
        assert after.parameters[name].dtype == torch.float32
        torch.testing.assert_close(
            after.parameters[name], value - estimate[name].float(), rtol=0, atol=1e-6
        )
    total = Pull().clipped_sum(state.parameters, cohort, plan.clip, 0)
    exact = scale(total.values, plan.estimator.factor(total))
    assert same_bits(
        after.parameters,
        {name: value - exact[name].float() for name, value in start().parameters.items()},
    )
    assert record.estimate_norm == pytest.approx(l2_norm(exact), rel=1e-12)
    assert record.release_over_noise is None


def test_the_cohort_is_what_the_rounds_coins_say() -> None:
    plan, pull = make_plan(), Pull()
    train(start(), plan, pull, 3)
    for round, cohort in enumerate(pull.cohorts):
        expected = 100 + np.flatnonzero(plan.coins.of_units(round) < 0.25)
        assert cohort.tolist() == expected.tolist()


def test_a_round_charges_once_and_counts_itself() -> None:
    plan = make_plan()
    after, _ = run_round(start(), plan, Pull())
    assert after.round == 1
    assert after.ledger == Ledger().charge(0, plan.cost, plan.draws.release_id)
    again, _ = run_round(ServerState(0, start().parameters, {}, after.ledger), plan, Pull())
    assert again.ledger == after.ledger  # the same seeded release is not paid for twice
    third, _ = run_round(after, plan, Pull())
    assert [(item.first_round, item.num_rounds) for item in third.ledger.items] == [(0, 2)]


def test_the_state_that_goes_in_stays_as_it_is() -> None:
    plan = make_plan(optimizer=ADAM)
    state = train(start(), plan, Pull(), 2)
    before = copied(state)
    after, _ = run_round(state, plan, Pull())
    assert same_state(state, before)
    assert not same_bits(after.parameters, state.parameters)


def test_an_executor_that_fails_leaves_the_state_untouched() -> None:
    state = train(start(), make_plan(optimizer=ADAM), Pull(), 1)
    before = copied(state)
    with pytest.raises(RuntimeError, match="a shard is lost"):
        run_round(state, make_plan(optimizer=ADAM), Broken())
    assert same_state(state, before)


def rare(**changes: Any) -> RoundPlan:  # noqa: ANN401
    """A plan whose coins practically never fall."""
    return make_plan(
        sampling=PoissonSampling(1e-9), estimator=FixedDenominator(1e-9, 5e9), **changes
    )


def test_an_empty_cohort_releases_noise_and_is_charged() -> None:
    plan, pull = rare(), Pull()
    after, record = run_round(start(), plan, pull)
    assert [cohort.tolist() for cohort in pull.cohorts] == [[]]
    noise, step = plan.draws.noise(0), grid_step(plan.noise_stddev)
    for name in sorted(start().parameters):
        before = start().parameters[name]
        drawn = torch.zeros(before.numel(), dtype=torch.float64)
        Normals(drawn.numel()).add_to_(drawn, plan.noise_stddev / step, noise.chunk(name, 0))
        drawn = torch.round(drawn) * step
        expected = before - drawn.reshape(before.shape).float()
        assert torch.equal(after.parameters[name], expected)
        assert not torch.equal(after.parameters[name], before)
    assert after.ledger.num_releases == 1
    length = l2_norm(
        {name: after.parameters[name] - old for name, old in start().parameters.items()}
    )
    assert record == RoundRecord(0, 0, 0, 0, None, 0.0, record.release_over_noise)
    assert record.release_over_noise == pytest.approx(length / (plan.noise_stddev * 8**0.5))


def test_the_record_says_what_was_computed() -> None:
    pull = Pull()
    _, record = run_round(start(), make_plan(), pull)
    units = len(pull.cohorts[0])
    assert units > 1
    assert (record.num_units, record.num_gradients, record.num_non_finite) == (units, 3 * units, 1)
    assert record.train_loss == 0.5  # a mean over units, whatever their number
    assert record.to_json() == {
        "units": units,
        "gradients": 3 * units,
        "non_finite": 1,
        "clipped": units - 1,
        "train_loss": 0.5,
        "estimate_norm": record.estimate_norm,
        "release_over_noise": record.release_over_noise,
        "clip_norm": None,
        "released_share": None,
    }


def test_training_stops_at_the_total_and_shows_every_round_in_order() -> None:
    seen: list[tuple[int, int, float | None]] = []
    states: list[ServerState] = []

    def on_round(state: ServerState, record: RoundRecord) -> None:
        seen.append((state.round, state.ledger.num_releases, record.train_loss))
        states.append(state)

    last = train(start(), make_plan(), Pull(), 4, on_round=on_round)
    assert seen == [(1, 1, 0.5), (2, 2, 1.0), (3, 3, 1.5), (4, 4, 2.0)]
    assert last is states[-1]
    assert train(last, make_plan(), Broken(), 4) is last
    assert train(last, make_plan(), Broken(), 2) is last


class Raises(ServerOptimizer):
    """One of somebody else's: raises in its third round, at the second parameter."""

    steps = 0

    def torch_optimizer(self, values: list[torch.Tensor]) -> torch.optim.Optimizer:
        Raises.steps += 1
        if Raises.steps == 6:
            raise RuntimeError("no such rate")
        return super().torch_optimizer(values)


def test_an_optimizer_of_others_that_fails_leaves_the_last_state_whole() -> None:
    seen: list[tuple[ServerState, ServerState]] = []
    with pytest.raises(RuntimeError, match="no such rate"):
        train(
            start(),
            make_plan(optimizer=Raises("adam", 0.1)),
            Pull(),
            4,
            on_round=lambda state, _: seen.append((state, copied(state))),
        )
    last, before = seen[-1]
    assert last.round == 2 and last.optimizer_state
    assert same_state(last, before)


def budget_for(plan: RoundPlan, rounds: int) -> Budget:
    return Budget(epsilon(plan.cost, rounds, 1e-5), 1e-5)


def test_a_spent_budget_stops_before_the_round() -> None:
    pull, three = Pull(), budget_for(make_plan(), 3)
    with pytest.raises(BudgetSpentError, match="round 3: 3 releases are charged"):
        train(start(), make_plan(), pull, 5, budget=three)
    assert len(pull.cohorts) == 3
    assert train(start(), make_plan(), Pull(), 3, budget=three).round == 3


def test_releases_that_a_crash_lost_count_against_the_budget() -> None:
    plan = make_plan(entropy="secure")
    lost = train(start(), plan, Pull(), 2).ledger
    resumed = ServerState(0, start().parameters, {}, lost)
    pull = Pull()
    with pytest.raises(BudgetSpentError, match="round 1: 3 releases are charged"):
        train(resumed, plan, pull, 3, budget=budget_for(plan, 3))
    assert len(pull.cohorts) == 1


@pytest.mark.parametrize("name", ["sgd", "adam", "adafactor"])
@pytest.mark.parametrize("stop", [0, 1, 4])
def test_going_on_from_the_middle_gives_the_bits_of_one_go(name: Any, stop: int) -> None:  # noqa: ANN401
    plan = make_plan(optimizer=ServerOptimizer(name, 0.1), seed=5)
    straight = train(start(), plan, Pull(), 6)
    middle = copied(train(start(), plan, Pull(), stop))
    assert same_state(train(middle, plan, Pull(), 6), straight)
    assert not same_state(train(start(), make_plan(optimizer=plan.optimizer), Pull(), 6), straight)

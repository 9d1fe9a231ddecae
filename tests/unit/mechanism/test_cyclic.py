"""Cyclic sampling: groups in turn, coins in one's turn, one price for the run; correlated noise."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting.pld import PLDAccountant
from scipy import special, stats

import fedsim
from fedsim.accounting.accountants import delta, epsilon
from fedsim.accounting.events import RoundCost
from fedsim.accounting.ledger import Ledger
from fedsim.accounting.privacy_filter import RenyiFilter
from fedsim.accounting.promise import verify
from fedsim.estimators import FixedDenominator
from fedsim.noise.matrix import banded_matrix, buffered_matrix
from fedsim.plan import RoundPlan
from fedsim.report.schema import load_report
from fedsim.runner.folder import RunFolder
from fedsim.sampling import CyclicSampling, PoissonSampling, Relation
from tests.helpers.coins import secret
from tests.helpers.coins import seeded as seeded_coins
from tests.helpers.light import check_going_on, light_config
from tests.unit.mechanism.test_balanced import COINS, N, Table, seeded, taken
from tests.unit.mechanism.test_plan import make_plan

ROUNDS, GROUPS, RATE = 11, 4, 0.5
LAW = CyclicSampling(ROUNDS, GROUPS, RATE)


def fits(table: Table) -> bool:
    """Whether a user's rounds are those of one group, with fair coins in each; chi-squared tests.

    Of groups, of two users side by side, of the coins of two turns, and of group 0's first coin
    and its members' neighbours: round 0 draws groups and coins from one source.
    """
    turns = np.arange(ROUNDS) % GROUPS
    of_group = np.stack([table[:, turns == g].sum(axis=1) for g in range(GROUPS)])
    if ((of_group > 0).sum(axis=0) > 1).any():
        return False
    cells = [table[:, round].reshape(-1, 2) @ [1, 2] for round in (0, 1)]
    chance = RATE / GROUPS
    pair = [(1 - chance) ** 2, chance * (1 - chance), chance * (1 - chance), chance**2]
    values = [
        stats.chisquare(np.bincount(c, minlength=4), np.array(pair) * N / 2).pvalue for c in cells
    ]
    for first in range(2):  # the coins of a group's first two turns, of those who are in it
        both = table[:, first] * 2 + table[:, first + GROUPS]
        inside = np.array([RATE * (1 - RATE), RATE * (1 - RATE), RATE**2]) / GROUPS
        law = np.concatenate([[1.0 - inside.sum()], inside])
        values.append(stats.chisquare(np.bincount(both, minlength=4), law * N).pvalue)
    return bool(min(values) > 1e-5)


def test_groups_take_turns_with_coins_of_their_own() -> None:
    assert fits(taken(lambda round: LAW.draw(N, round, COINS), ROUNDS))
    everybody = CyclicSampling(ROUNDS, GROUPS, 1.0)
    whole = taken(lambda round: everybody.draw(N, round, COINS), ROUNDS)
    assert (whole.sum(axis=1) == np.where(whole[:, 3] == 1, 2, 3)).all()  # eleven rounds of four
    with pytest.raises(ValueError, match="round = 11: the run has 11 rounds"):
        LAW.draw(N, 11, COINS)


def by_place(round: int) -> Table:
    """Groups of the place in the pool: two neighbours are never in one."""
    turn = np.flatnonzero(np.arange(N) % GROUPS == round % GROUPS)
    return turn[seeded(round).random(len(turn)) < RATE]


def one_coin_a_run(round: int) -> Table:
    """The same coin in every turn."""
    return LAW.draw(N, round % GROUPS, COINS)


OTHERS: dict[str, Callable[[int], Table]] = {
    "Poisson": lambda round: np.flatnonzero(seeded(round).random(N) < RATE / GROUPS),
    "groups anew every round": lambda round: LAW.draw(N, round, secret(N)),
    "groups by place": by_place,
    "one coin a run": one_coin_a_run,
    "a turn too early": lambda round: CyclicSampling(ROUNDS, GROUPS - 1, 0.375).draw(
        N, round, COINS
    ),
}


@pytest.mark.parametrize("draw", OTHERS.values(), ids=OTHERS)
def test_other_laws_are_told_apart(draw: Callable[[int], Table]) -> None:
    assert not fits(taken(draw, ROUNDS))


GRID = [
    *((100, 8, 0.08, 1.0, relation) for relation in Relation),
    (100, 8, 1.0, 6.0, Relation.REPLACE),
    (64, 64, 0.3, 0.8, Relation.ADD_OR_REMOVE),
    (1000, 3, 0.01, 0.7, Relation.ADD_OR_REMOVE),
]


@pytest.mark.parametrize(("rounds", "groups", "rate", "noise", "relation"), GRID)
def test_the_price_is_that_of_a_poisson_round_a_turn(
    rounds: int, groups: int, rate: float, noise: float, relation: Relation
) -> None:
    turn = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    theirs = PLDAccountant(relation.of_dp_accounting)
    theirs.compose(dp_accounting.SelfComposedDpEvent(turn, -(-rounds // groups)))
    ours = epsilon(
        RoundCost(CyclicSampling(rounds, groups, rate), noise), rounds, 1e-5, None, relation
    )
    assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-3)


def test_the_first_release_is_charged_as_the_whole_run() -> None:
    cost, turns = RoundCost(LAW, 1.0), [(RoundCost(PoissonSampling(RATE), 1.0), 3)]
    whole = epsilon(cost, ROUNDS, 1e-5)
    ledger = Ledger()
    for round in range(ROUNDS):
        ledger = ledger.charge(round, cost, "kept:a")
        assert ledger.epsilon(1e-5) == whole
    assert Ledger.from_json(json.loads(json.dumps(ledger.to_json()))) == ledger
    rule = RenyiFilter(10.0, 1e-5, Relation.ADD_OR_REMOVE, 8.0)
    assert rule.spent(ledger.costs) == pytest.approx(rule.spent(turns))
    with pytest.raises(ValueError, match="the price of 11 rounds pays for each of them once"):
        ledger.charge(ROUNDS, cost, "kept:a")
    other = ledger.charge(0, cost, "kept:b")
    assert rule.spent(other.costs) == pytest.approx(2.0 * rule.spent(turns))


def test_a_users_examples_are_in_one_group_with_coins_of_their_own() -> None:
    coins = seeded_coins(3, N, np.repeat(np.arange(N // 4, dtype=np.uint64), 4))
    table = taken(lambda round: LAW.draw(N, round, coins), ROUNDS)
    together = table.reshape(-1, 4, ROUNDS).max(axis=1)
    turns = np.arange(ROUNDS) % GROUPS
    of_group = np.stack([together[:, turns == g].max(axis=1) for g in range(GROUPS)])
    assert (of_group.sum(axis=0) <= 1).all()
    sums = table.reshape(-1, 4, ROUNDS)[:, :, 0].sum(axis=1)
    law = stats.binom.pmf(np.arange(5), 4, RATE) / GROUPS
    law[0] += 1.0 - 1.0 / GROUPS
    assert stats.chisquare(np.bincount(sums, minlength=5), law * N / 4).pvalue > 1e-5


@pytest.mark.parametrize("rate", [0.3, 0.95])
def test_coins_with_overlapping_columns_cost_no_more_than_is_charged(rate: float) -> None:
    """δ over all coins of a group, which is known here, by Monte Carlo, in both directions.

    In C times the releases, a way to take part is the sum of its columns; the noise is independent.
    """
    matrix, noise = buffered_matrix(6, 2, 2), 2.0
    cost = RoundCost(CyclicSampling(6, 2, rate, priced_rate=1.0), noise)
    coins = np.array(list(itertools.product([0, 1], repeat=3)))
    chances = np.where(coins, rate, 1.0 - rate).prod(axis=1)
    moved = coins @ (matrix.dense(6)[:, ::2] / matrix.amplification).T
    rng = np.random.default_rng(0)
    without = noise * rng.standard_normal((100_000, 6))
    present = without + moved[rng.choice(8, 100_000, p=chances)]

    def delta_at(epsilon: float, seen: npt.NDArray[np.float64], sign: float) -> tuple[float, float]:
        each = (seen @ moved.T - 0.5 * np.square(moved).sum(axis=1)) / noise**2
        loss = sign * special.logsumexp(each, axis=1, b=chances)
        values = np.maximum(-np.expm1(epsilon - loss), 0.0)
        return float(values.mean()), 5.0 * float(values.std()) / math.sqrt(len(values))

    for at in (0.2, 1.0):
        charged = delta(cost, 6, at)
        removing, adding = delta_at(at, present, 1.0), delta_at(at, without, -1.0)
        assert all(found - error <= charged for found, error in (removing, adding))
        assert charged == delta(RoundCost(PoissonSampling(1.0), noise), 3, at)
        assert rate < 0.95 or removing[0] > 0.8 * charged  # power


def test_a_price_of_fewer_coins_than_are_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match=r"priced_rate = 0.4: give a number from rate to 1"):
        CyclicSampling(6, 2, 0.5, 0.4)


def test_a_turn_of_els_is_its_mixture() -> None:
    ours = epsilon(RoundCost(CyclicSampling(100, 8, 0.1), 2.0, 4), 100, 1e-5)
    assert ours == epsilon(RoundCost(PoissonSampling(0.1), 2.0, 4), 13, 1e-5)


def els_plan(**changes: Any) -> RoundPlan:  # noqa: ANN401
    sampling = CyclicSampling(8, 2, 0.5)
    fields = {
        "unit": "example",
        "sampling": sampling,
        "estimator": FixedDenominator(0.25, 20),
        "units_per_user": 4,
        "owners": np.arange(20) // 4,
        "matrix": banded_matrix(8, 2),
    }
    return make_plan(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"owners": None}, "owners: cyclic sampling needs"),
        ({"owners": np.arange(19) // 4}, "owners: has 19 entries, but the pool has 20 units"),
        ({"owners": np.arange(20) // 5}, "with at most units_per_user = 4"),
        (
            {"relation": Relation.FIXED_GRAPH},
            "relation = 'fixed-graph', sampling.kind = 'cyclic', units_per_user = 4: cyclic",
        ),
    ],
)
def test_examples_without_their_owners_are_refused(changes: dict[str, Any], message: str) -> None:
    assert len(els_plan().cohort(0)) <= 20
    with pytest.raises(ValueError, match=message):
        els_plan(**changes)


def run_config(speeches: Path, **sections: dict[str, Any]) -> fedsim.Config:
    strategy = {
        "rounds": 8,
        "cohort_size": None,
        "sampling": {"kind": "cyclic", "groups": 3},
        **sections.pop("strategy", {}),
    }
    privacy = {"declared_num_users": 24, "mechanism": "banded", **sections.pop("privacy", {})}
    return light_config(speeches, strategy=strategy, privacy=privacy, **sections)


FALLING = {
    "l2_clip_norm": 1.0,
    "schedule": {"kind": "linear", "final_l2_clip_norm": 0.1, "rounds": 8},
}


@pytest.mark.parametrize(
    ("noise", "mechanism", "strategy", "words"),
    [
        ("seeded", "banded", {}, "a banded Toeplitz matrix of 3 bands"),
        ("secure", "banded", {"clip": FALLING}, "a banded Toeplitz matrix of 3 bands"),
        ("secure", "blt", {}, "a Toeplitz matrix of 3 buffers (BLT)"),
        ("seeded", "blt", {"cohort_size": 4.0}, "a Toeplitz matrix of 3 buffers (BLT)"),
    ],
)
def test_a_run_that_was_cut_off_goes_on_to_the_same_bits(
    noise: str,
    mechanism: str,
    strategy: dict[str, Any],
    words: str,
    speeches: Path,
    tmp_path: Path,
) -> None:
    """In the middle of a band: noise of rounds before is drawn anew from the kept secret."""
    privacy = {"noise": noise, "mechanism": mechanism}
    config = run_config(speeches, privacy=privacy, strategy=strategy)
    folder = RunFolder(fedsim.run(config, tmp_path / "run").path)
    whole = load_report(folder.path).privacy
    coins = "cohort_size" in strategy
    sampler = (
        "cyclic Poisson sampling of users, one group of 3 in turn (accounted as whole groups)"
        if coins
        else "cyclic sampling of users, one whole group of 3 in turn"
    )
    assert f"8 rounds of {sampler}" in whole.statement
    of_whole_groups = RoundCost(CyclicSampling(8, 3, 1.0), config.privacy.noise_multiplier or 0.0)
    assert whole.epsilon == epsilon(of_whole_groups, 8, config.privacy.delta or 0.0)
    assert [line.epsilon for line in folder.read_metrics()[2::2]] == [whole.epsilon] * 4
    promise = verify(folder.model)
    assert promise["epsilon"] == whole.epsilon
    said = " ".join(promise["assumptions"])
    assert words in said
    assert "the rounds of one user, 3 at most, are 3 or more apart" in said
    check_going_on(config, folder, lost=2)


def test_els_takes_its_groups_of_users(speeches: Path, tmp_path: Path) -> None:
    els = {"name": "els", "batch_size": 6.0, "group_size": 4}
    run = fedsim.run(run_config(speeches, strategy=els), tmp_path / "run")
    said = verify(run.path / "model")
    assert said["epsilon"] == run.epsilon
    assert (
        "cyclic Poisson sampling of examples, one group of 3 in turn (at most 4 a user)"
        in (said["statement"])
    )


CHANGED: dict[str, dict[str, Any]] = {
    "strategy.rounds": {"strategy": {"rounds": 9}},
    "strategy.sampling": {"strategy": {"sampling": {"kind": "cyclic", "groups": 4}}},
    "privacy.bands": {"privacy": {"bands": 2}},
    "privacy.mechanism": {"privacy": {"mechanism": "independent"}},
}

"""Balanced sampling: everybody once a pass by coins of their own, and one price for the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

import fedsim
from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.accounting.ledger import Ledger
from fedsim.accounting.privacy_filter import RenyiFilter
from fedsim.accounting.promise import verify
from fedsim.estimators import FixedDenominator
from fedsim.materials import load_materials, new_data_seed
from fedsim.plan import RoundPlan
from fedsim.report.schema import load_report
from fedsim.runner.folder import RunFolder
from fedsim.sampling import BalancedSampling, Relation
from fedsim.seeding import stream
from fedsim.strategy import build_plan
from tests.helpers.coins import Same, secret
from tests.helpers.coins import seeded as seeded_coins
from tests.helpers.light import check_going_on, light_config
from tests.unit.mechanism.test_plan import make_plan

Table = npt.NDArray[np.int64]
N, ROUNDS, PASSES = 40_000, 12, 3
LAW = BalancedSampling(ROUNDS, PASSES)
SECRET = 2**127 + 5


def taken(draw: Callable[[int], Table], rounds: int = ROUNDS) -> Table:
    """Return (N, rounds): 1 where a user takes part."""
    table = np.zeros((N, rounds), dtype=np.int64)
    for round in range(rounds):
        table[draw(round), round] = 1
    return table


def fits(table: Table) -> bool:
    """Whether users are once in each pass, with rounds that are uniform and independent.

    Of passes of one user, and of two users who stand side by side: chi-squared tests.
    """
    passes = table.reshape(N, PASSES, -1)
    if (passes.sum(axis=2) != 1).any():
        return False
    places = passes.argmax(axis=2)
    size = passes.shape[2]
    values = [stats.chisquare(np.bincount(places[:, p], minlength=size)).pvalue for p in (0, 1, 2)]
    pairs = [(places[:, 0], places[:, 1]), (places[:, 1], places[:, 2])]
    pairs.append((places[::2, 0], places[1::2, 0]))
    for one, other in pairs:
        joint = np.bincount(one * size + other, minlength=size * size)
        values.append(stats.chisquare(joint).pvalue)
    return bool(min(values) > 1e-5)


def seeded(round: int) -> np.random.Generator:
    return stream(3, "sampling", round)


COINS = seeded_coins(3, N)


def test_everybody_is_once_in_each_pass_in_a_round_of_their_own() -> None:
    assert fits(taken(lambda round: LAW.draw(N, round, COINS)))
    plan = balanced_plan(entropy="secure", seed=SECRET, pool=np.arange(N))
    assert fits(taken(plan.cohort))


def test_passes_of_two_lengths_have_everybody_once() -> None:
    law = BalancedSampling(11, 3)  # of 3, 4 and 4 rounds
    table = taken(lambda round: law.draw(N, round, COINS), 11)
    for first, size in ((0, 3), (3, 4), (7, 4)):
        of_pass = table[:, first : first + size]
        assert (of_pass.sum(axis=1) == 1).all()
        assert stats.chisquare(of_pass.sum(axis=0)).pvalue > 1e-5
    assert law.pass_sizes == {3: 1, 4: 2}
    assert table.sum() / 11 == pytest.approx(law.probability * N)


def sequential(round: int) -> Table:
    """The same round of every pass for each user, by the place in the pool."""
    return np.flatnonzero(np.arange(N) % (ROUNDS // PASSES) == round % (ROUNDS // PASSES))


def with_replacement(round: int) -> Table:
    """Each user takes PASSES rounds at random, of which some may be the same."""
    chosen = np.random.default_rng(1).integers(0, ROUNDS, (N, PASSES))
    return np.flatnonzero((chosen == round).any(axis=1))


def one_order_for_all_passes(round: int) -> Table:
    """Coins that are asked for once a run, and not once a pass."""
    return LAW.draw(N, round, Same(COINS))


OTHERS: dict[str, Callable[[int], Table]] = {
    "Poisson": lambda round: np.flatnonzero(seeded(round).random(N) < 1 / 4),
    "fresh coins every round": lambda round: LAW.draw(N, round, secret(N)),
    "with replacement": with_replacement,
    "sequential": sequential,
    "one order for all passes": one_order_for_all_passes,
}


@pytest.mark.parametrize("draw", OTHERS.values(), ids=OTHERS)
def test_other_laws_are_told_apart(draw: Callable[[int], Table]) -> None:
    assert not fits(taken(draw))


def balanced_plan(**changes: Any) -> RoundPlan:  # noqa: ANN401
    return make_plan(
        **{"sampling": LAW, "estimator": FixedDenominator(LAW.probability, 20), **changes}
    )


def test_a_round_of_a_secret_seed_is_the_same_again() -> None:
    one, same, other = (
        balanced_plan(entropy="secure", seed=seed) for seed in (SECRET, SECRET, SECRET + 1)
    )
    for round in range(ROUNDS):
        assert one.draws.noise(round) == same.draws.noise(round) != other.draws.noise(round)
        assert list(one.cohort(round)) == list(same.cohort(round))
    assert len({one.draws.noise(round) for round in range(ROUNDS)}) == ROUNDS
    assert any(list(one.cohort(r)) != list(other.cohort(r)) for r in range(ROUNDS))
    assert one.draws.release_id.startswith("kept:")
    with pytest.raises(ValueError, match="round = 12: the run has 12 rounds"):
        one.cohort(12)


@pytest.mark.parametrize("draw", ["draws.noise", "cohort"])
def test_secure_noise_is_not_drawn_from_a_seed_that_is_public(draw: str) -> None:
    with pytest.raises(ValueError, match=r"seed = 7: with secure noise .* a secret of 128 bits"):
        attrgetter(draw)(balanced_plan(entropy="secure", seed=7))(0)
    attrgetter(draw)(balanced_plan(entropy="seeded", seed=7))(0)


def run_config(speeches: Path, **sections: dict[str, Any]) -> fedsim.Config:
    strategy = {
        "rounds": 8,
        "cohort_size": None,
        "sampling": {"kind": "balanced", "participations": 2},
        **sections.pop("strategy", {}),
    }
    return light_config(speeches, strategy=strategy, **sections)


def test_a_secret_plan_without_a_secret_seed_of_the_data_has_one_of_its_own(speeches: Path) -> None:
    """As who builds a plan in Python: what was loaded has the config's seed."""
    config = run_config(speeches, privacy={"noise": "secure"})
    public = load_materials(config.seed, config.data, config.model, "cpu")
    assert build_plan(config, public).draws.noise(0) != build_plan(config, public).draws.noise(0)
    other = load_materials(config.seed, config.data, config.model, "cpu", 5)  # public as well
    assert build_plan(config, other).draws.noise(0) != build_plan(config, other).draws.noise(0)
    assert str(build_plan(config, other).seed) not in repr(build_plan(config, other))
    secret = load_materials(config.seed, config.data, config.model, "cpu", new_data_seed(config))
    assert build_plan(config, secret).draws.noise(0) == build_plan(config, secret).draws.noise(0)


def test_the_first_release_is_charged_as_the_whole_run() -> None:
    cost = RoundCost(LAW, 1.0)
    whole = epsilon(cost, ROUNDS, 1e-5)
    assert epsilon(RoundCost(BalancedSampling(10**6, 1), 0.3), 1, 1e-5) > 5.0  # not a round's
    ledger = Ledger().charge(0, cost, "kept:a")
    assert (ledger.num_releases, ledger.costs) == (1, [(cost, ROUNDS)])
    for round in range(ROUNDS):
        ledger = ledger.charge(round, cost, "kept:a")
        assert ledger.epsilon(1e-5) == whole
    assert Ledger.from_json(json.loads(json.dumps(ledger.to_json()))) == ledger
    other = Ledger().charge(0, cost, "kept:a").charge(0, cost, "kept:b")
    assert other.costs == [(cost, 2 * ROUNDS)]  # two runs, of which each has one release
    assert other.epsilon(1e-5) > 1.2 * whole
    rule = RenyiFilter(10.0, 1e-5, Relation.ADD_OR_REMOVE, 8.0)
    assert rule.spent(other.costs) == pytest.approx(2.0 * rule.spent(ledger.costs))


@pytest.mark.parametrize(("round", "release"), [(ROUNDS, "kept:a"), (0, "secure:a")])
def test_what_the_price_does_not_pay_for_is_not_charged(round: int, release: str) -> None:
    cost = RoundCost(LAW, 1.0)
    with pytest.raises(ValueError, match="the price of 12 rounds pays for each of them once"):
        Ledger().charge(round, cost, release)


@pytest.mark.parametrize(
    ("noise", "sampling", "words"),
    [
        ("seeded", {"participations": 3}, "each of 3 passes of 2 or 3 rounds"),
        ("secure", {"participations": 2}, "each of 2 passes of 4 rounds"),
    ],
)
def test_a_run_that_was_cut_off_goes_on_to_the_same_bits(
    noise: str, sampling: dict[str, int], words: str, speeches: Path, tmp_path: Path
) -> None:
    """Secure runs too: the noise is drawn from a secret that is kept, and is charged once."""
    privacy = {"noise": noise, "declared_num_users": 24}
    strategy = {"sampling": {"kind": "balanced", **sampling}}
    config = run_config(speeches, privacy=privacy, strategy=strategy)
    folder = RunFolder(fedsim.run(config, tmp_path / "run").path)
    whole = load_report(folder.path).privacy
    begins = "Simulated: with secret randomness" if noise == "seeded" else "Every user has (ε"
    assert whole.statement.startswith(begins)
    assert f"8 rounds of balanced sampling of users once in {words}" in whole.statement
    assert [line.epsilon for line in folder.read_metrics()[2::2]] == [whole.epsilon] * 4
    promise = verify(folder.model)
    assert promise["epsilon"] == whole.epsilon
    kept = "who has this secret can subtract the noise" in " ".join(promise["assumptions"])
    assert kept == (noise == "secure")
    assert not any("not stored" in line for line in promise["assumptions"])
    check_going_on(config, folder, lost=1)

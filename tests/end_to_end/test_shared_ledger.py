"""Runs that share a ledger keep one budget together, whichever process charges first."""

from __future__ import annotations

import json
import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.accounting.ledger import Ledger
from fedsim.accounting.privacy_filter import ORDERS, RenyiFilter
from fedsim.errors import BudgetSpentError, ConfigError
from fedsim.report.schema import load_report
from fedsim.runner.shared_ledger import SharedAccount, SharedLedger, read_shared
from fedsim.sampling import BalancedSampling, PoissonSampling, Relation
from tests.helpers.commands import fedsim, fedsim_json, fedsim_ok
from tests.helpers.light import write_config

COST, OTHER = RoundCost(PoissonSampling(0.25), 1.0), RoundCost(PoissonSampling(0.1), 0.8)
BOTH = Relation.ADD_OR_REMOVE


def budget_for(rounds: int, delta: float, cost: RoundCost = COST) -> float:
    """The least ε of which a filter pays for so many rounds."""
    filters = [RenyiFilter(1.0, delta, BOTH, order) for order in ORDERS]
    return min(each.converted([(cost, rounds)]) for each in filters) * (1.0 + 1e-9)


def write(path: Path, speeches: Path, ledger: Path, budget: float, **privacy: object) -> Path:
    shared = {"ledger": str(ledger), "epsilon": budget, "delta": 1e-3}
    return write_config(path, speeches, privacy={"shared": shared, "noise": "secure", **privacy})


def account(path: Path, budget: float, delta: float = 1e-5) -> SharedAccount:
    return SharedAccount(path, budget, delta, BOTH)


def test_siblings_stop_before_they_exceed_the_common_budget(speeches: Path, tmp_path: Path) -> None:
    """Four rounds each, a budget for six: the second run ends after two, with its model."""
    ledger = tmp_path / "people.json"
    budget = budget_for(6, 1e-3)
    done = []
    for name, rate in [("first", 0.1), ("second", 0.2)]:
        config = write(tmp_path / f"{name}.toml", speeches, ledger, budget)
        setting = f"server.learning_rate={rate}"
        done.append(fedsim("run", config, "--out", tmp_path / name, "--set", setting))
    assert [end.returncode for end in done] == [0, 3]
    assert "would exceed the shared budget" in done[1].stderr
    assert read_shared(ledger).ledger.costs == [(COST, 6)]
    # The second was ended by what the first had spent: its ε is of all that it planned.
    reports = [load_report(tmp_path / name) for name in ("first", "second")]
    assert [(report.cost.rounds, report.privacy.rounds) for report in reports] == [(4, 4), (2, 4)]
    assert reports[1].privacy.epsilon == pytest.approx(epsilon(COST, 4, 1e-3))
    ended = "ended the run after 2 rounds"
    assert [ended in " ".join(report.privacy.assumptions) for report in reports] == [False, True]
    fedsim_ok("account", "verify", tmp_path / "second" / "model")
    facts = fedsim_json("account", "ledger", ledger)
    assert (facts["epsilon"], facts["delta"], facts["unit"]) == (budget, 1e-3, "user")
    assert facts["releases"][0]["spent_share"] == facts["spent_share"] > 0.99
    said = fedsim("account", "ledger", ledger).stdout
    assert "All 6 releases, and all later ones, together give every user (ε = " in said
    assert "rounds of Poisson sampling of units with probability 0.25" in said


def test_a_run_is_not_resumed_without_the_ledger_that_it_was_begun_with(
    speeches: Path, tmp_path: Path
) -> None:
    """A relative path in another folder would be a new ledger, with the whole budget."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    config = write(tmp_path / "c.toml", speeches, Path("people.json"), budget_for(3, 1e-3))
    order = ("run", config, "--out", tmp_path / "run")
    assert fedsim(*order, folder=here).returncode == 3
    done = fedsim(*order, "--resume", folder=there)
    assert "holds no release of this run, which has charged" in done.complaint
    assert fedsim(*order, "--resume", folder=here).returncode == 3
    assert read_shared(here / "people.json").ledger.costs == [(COST, 3)]


def test_a_ledger_in_place_of_the_one_that_was_charged_is_refused(tmp_path: Path) -> None:
    held = account(tmp_path / "people.json", budget_for(9, 1e-5))
    held.charge(0, COST, "mine")
    own = Ledger().charge(0, COST, "mine")
    held.path.rename(tmp_path / "moved.json")
    with pytest.raises(ConfigError, match="holds no release of this run"):
        held.charge(1, COST, "mine", own=own)
    held.charge(0, COST, "theirs")
    with pytest.raises(ConfigError, match="holds no release of this run"):
        held.charge(1, COST, "mine", own=own)
    assert read_shared(held.path).ledger.num_releases == 1


def test_a_simulated_run_charges_nothing(speeches: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "people.json"
    config = write(tmp_path / "mine.toml", speeches, ledger, 1.0, noise="seeded")
    assert (
        "a simulated run charges no ledger"
        in fedsim_ok("run", config, "--out", tmp_path / "run").stderr
    )
    assert not ledger.exists()


def test_a_run_without_a_guarantee_or_with_another_budget_is_refused(
    speeches: Path, tmp_path: Path
) -> None:
    ledger = tmp_path / "people.json"
    account(ledger, 2.0, 1e-3).charge(0, OTHER, "secure:1")
    before = ledger.read_bytes()
    for number, (budget, change, words) in enumerate(
        [
            (3.0, "seed=1", "has ε = 2 at δ = 0.001 under add-or-remove-one, this config has 3"),
            (2.0, "strategy.sampling={kind='fixed-size'}", "under replace-one"),
            (
                2.0,
                "privacy.noise_multiplier=0",
                "no privacy guarantee, so it cannot share a budget",
            ),
        ]
    ):
        config = write(tmp_path / "c.toml", speeches, ledger, budget)
        done = fedsim("run", config, "--out", tmp_path / f"run-{number}", "--set", change)
        assert words.removeprefix("under ") in done.complaint
        assert not (tmp_path / f"run-{number}").exists()
    assert ledger.read_bytes() == before


def test_runs_chosen_after_looking_are_paid_for_by_the_filter(tmp_path: Path) -> None:
    """Another mechanism may follow; the order is that of the first run, and stays."""
    shared = account(tmp_path / "people.json", 2 * budget_for(4, 1e-5))
    for round in range(4):
        shared.charge(round, COST, "secure:1", [(COST, 4)])
    order = read_shared(shared.path).order
    with pytest.raises(BudgetSpentError, match="would exceed the shared budget"):
        for round in range(10_000):
            shared.charge(round, OTHER, "secure:2")
    held = read_shared(shared.path)
    paid = dict(held.ledger.costs)[OTHER]
    assert held.order == order
    assert held.ledger.costs == [(COST, 4), (OTHER, paid)]
    assert held.spent(held.ledger.costs) <= held.budget
    assert held.spent([(COST, 4), (OTHER, paid + 1)]) > held.budget


def test_a_run_with_one_price_is_spent_with_its_first_release(tmp_path: Path) -> None:
    whole = RoundCost(BalancedSampling(20, 2), 1.0)
    shared = account(tmp_path / "people.json", budget_for(20, 1e-3, whole), 1e-3)
    for round in range(20):
        shared.charge(round, whole, "kept:1")
    shared.charge(3, whole, "kept:1")  # a round that is done again
    with pytest.raises(BudgetSpentError):
        shared.charge(0, whole, "kept:2")


def _charge_many(path: Path, name: str, start: Barrier) -> None:
    start.wait()
    for round in range(20):
        account(path, 100.0).charge(round, COST, f"secure:{name}")


def test_processes_that_charge_at_once_lose_nothing(tmp_path: Path) -> None:
    path, names = tmp_path / "people.json", ["a", "b", "c"]
    start = multiprocessing.get_context("fork").Barrier(len(names))
    processes = [
        multiprocessing.get_context("fork").Process(target=_charge_many, args=(path, name, start))
        for name in names
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
    charged = {item.release: item.num_rounds for item in read_shared(path).ledger.items}
    assert charged == {f"secure:{name}": 20 for name in names}


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"epsilon": "8"}, {"relation": "x"}, {"order": None}, {"ledger": 3}, None],
)
def test_a_damaged_file_is_refused(tmp_path: Path, change: dict[str, object] | None) -> None:
    path = tmp_path / "people.json"
    good = SharedLedger(8.0, 1e-5, BOTH, 4.0, Ledger().charge(0, COST, "secure:1"))
    path.write_text(json.dumps(good.to_json()))
    assert read_shared(path) == good
    path.write_text("{" if change is None else json.dumps(good.to_json() | change))
    if change != {"epsilon": "8"}:  # a number in quotes is one
        with pytest.raises(ConfigError, match=r"people\.json: cannot be read"):
            read_shared(path)

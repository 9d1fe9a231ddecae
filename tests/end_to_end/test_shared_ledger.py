"""Runs that share a ledger keep one budget together, whichever process charges first."""

from __future__ import annotations

import json
import multiprocessing
import re
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.accounting.ledger import Ledger
from fedsim.accounting.privacy_filter import ORDERS, RenyiFilter
from fedsim.cli.ledger import _table
from fedsim.errors import BudgetSpentError, ConfigError
from fedsim.report.schema import load_report
from fedsim.runner.shared_ledger import SharedAccount, SharedLedger, read_shared
from fedsim.sampling import BalancedSampling, PoissonSampling, Relation
from tests.helpers.commands import fedsim, fedsim_json, fedsim_ok
from tests.helpers.light import write_config

COST = RoundCost(PoissonSampling(0.25), 1.0)
BOTH = Relation.ADD_OR_REMOVE


def budget_for(rounds: int, delta: float) -> float:
    """The least ε of which a filter pays for so many rounds."""
    filters = [RenyiFilter(1.0, delta, BOTH, order) for order in ORDERS]
    return min(each.converted([(COST, rounds)]) for each in filters) * (1.0 + 1e-9)


def write(path: Path, speeches: Path, ledger: Path, budget: float, **privacy: object) -> Path:
    shared = {"ledger": str(ledger), "epsilon": budget, "delta": 1e-3}
    return write_config(path, speeches, privacy={"shared": shared, **privacy})


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_siblings_stop_before_they_exceed_the_common_budget(
    speeches: Path, tmp_path: Path, noise: str
) -> None:
    """Four rounds each, a budget for six: the second run ends after two, with its model."""
    ledger = tmp_path / "people.json"
    budget = budget_for(6, 1e-3)
    done = []
    for name, rate in [("first", 0.1), ("second", 0.2)]:
        config = write(tmp_path / f"{name}.toml", speeches, ledger, budget, noise=noise)
        setting = f"server.learning_rate={rate}"
        done.append(fedsim("run", config, "--out", tmp_path / name, "--set", setting))
    assert [end.returncode for end in done] == [0, 3]
    assert "would exceed its budget" in done[1].stderr
    assert "pays for 2 of the 4 rounds of this run" in done[1].stderr
    assert "rounds of this run" not in done[0].stderr
    assert "Traceback" not in done[1].stderr
    assert read_shared(ledger).ledger.costs == [(COST, 6)]
    # The second was ended by what the first had spent: its ε is of all that it planned.
    reports = [load_report(tmp_path / name) for name in ("first", "second")]
    assert [(report.cost.rounds, report.privacy.rounds) for report in reports] == [(4, 4), (2, 4)]
    assert reports[1].privacy.epsilon == pytest.approx(epsilon(COST, 4, 1e-3))
    ended = "ended the run after 2 rounds"
    assert [ended in " ".join(report.privacy.assumptions) for report in reports] == [False, True]
    fedsim_ok("account", "verify", tmp_path / "second" / "model")
    assert (tmp_path / "second" / "model" / "model.safetensors").exists()
    facts = fedsim_json("account", "ledger", ledger)
    assert (facts["basis"], facts["epsilon"]) == ("filter", budget)
    assert facts["if_fixed_in_advance"]["epsilon"] == pytest.approx(epsilon(COST, 6, 1e-3))
    assert (facts["delta"], facts["unit"], facts["relation"]) == (1e-3, "user", "add-or-remove-one")
    said = fedsim("account", "ledger", ledger).stdout
    assert facts["releases"][0]["spent_share"] == facts["spent_share"] > 0.99
    assert "of the budget" in said.splitlines()[0]
    shown = [float(share) for share in re.findall(r"([\d.]+) % *$", said, re.MULTILINE)]
    assert [0.0 <= share - 100.0 * facts["spent_share"] < 0.1 for share in shown] == [True]
    assert re.search(r"All 6 releases, and those to come, .* every user has .* filter", said)
    assert "6 rounds of Poisson sampling of units with probability 0.25" in said


def test_no_share_of_a_budget_is_rounded_down() -> None:
    """What cost something is not nothing."""
    shares = (0.000412345, 0.99951234)
    rows = [{"rounds": 1, "mechanism": "a round", "spent_share": share} for share in shares]
    assert list(_table(rows).columns[2].cells) == ["0.04124 %", "99.96 %"]


def test_a_link_is_the_ledger_itself_and_a_second_name_is_refused(
    speeches: Path, tmp_path: Path
) -> None:
    """A write replaces a name: through another one there would be two budgets."""
    ledger, link = tmp_path / "people.json", tmp_path / "link.json"
    link.symlink_to(ledger)
    budget = budget_for(6, 1e-3)
    for name, path, rate in [("first", ledger, 0.1), ("second", link, 0.2)]:
        config = write(tmp_path / f"{name}.toml", speeches, path, budget)
        done = fedsim("run", config, "--out", tmp_path / name, "--set", f"seed={int(rate * 10)}")
    assert done.returncode == 3
    assert link.is_symlink()
    assert read_shared(ledger).ledger.costs == [(COST, 6)]
    second = tmp_path / "second name.json"
    second.hardlink_to(ledger)
    config = write(tmp_path / "third.toml", speeches, second, budget)
    done = fedsim("run", config, "--out", tmp_path / "third")
    assert f"privacy.shared.ledger = '{second}': the file has another name" in done.complaint
    assert not (tmp_path / "third").exists()


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_a_run_is_resumed_with_the_ledger_that_it_was_begun_with(
    speeches: Path, tmp_path: Path, noise: str
) -> None:
    """A relative path in another folder would be a new ledger, with the whole budget.

    Or another run's: as many releases at the same cost are not those of this run.
    """
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    three = epsilon(COST, 3, 1e-3) * (1.0 + 1e-9)
    config = write(tmp_path / "c.toml", speeches, Path("people.json"), three)
    order = ("run", config, "--out", tmp_path / "run", "--set", f"privacy.noise={noise}")
    assert fedsim(*order, folder=here).returncode == 3
    other = ("run", config, "--out", tmp_path / "other", *order[4:], "--set", "seed=5")
    for others in (0, 3):
        if others:
            assert fedsim(*other, folder=there).returncode == 3
        done = fedsim(*order, "--resume", folder=there)
        assert "lacks 3 releases of this run; resume it with the ledger that" in done.complaint
        assert (there / "people.json").exists() == (others > 0)
    assert read_shared(there / "people.json").ledger.costs == [(COST, 3)]
    assert fedsim(*order, "--resume", folder=here).returncode == 3
    assert read_shared(here / "people.json").ledger.costs == [(COST, 3)]


def test_a_run_that_only_lacks_its_report_is_refused_another_ledger_too(
    speeches: Path, tmp_path: Path
) -> None:
    """It charges nothing more, and its report would say that the other ledger pays for it."""
    here, there, run = tmp_path / "here", tmp_path / "there", tmp_path / "run"
    here.mkdir()
    there.mkdir()
    config = write(tmp_path / "c.toml", speeches, Path("people.json"), budget_for(4, 1e-3))
    fedsim_ok("run", config, "--out", run, folder=here)
    (run / "report.json").unlink()
    done = fedsim("run", config, "--out", run, "--resume", folder=there)
    assert "lacks 4 releases of this run; resume it with the ledger that" in done.complaint
    assert not (run / "report.json").exists()
    fedsim_ok("run", config, "--out", run, "--resume", folder=here)


def test_the_same_seeded_run_is_charged_once(speeches: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "people.json"
    config = write(tmp_path / "mine.toml", speeches, ledger, budget_for(4, 1e-3))
    for name in ("first", "again"):
        fedsim_ok("run", config, "--out", tmp_path / name)
    assert read_shared(ledger).ledger.num_releases == 4
    first, again = (tmp_path / name / "model" / "model.safetensors" for name in ("first", "again"))
    assert first.read_bytes() == again.read_bytes()


def test_another_budget_or_a_broken_file_is_refused_before_anything_is_written(
    speeches: Path, tmp_path: Path
) -> None:
    ledger = tmp_path / "people.json"
    config = write(tmp_path / "mine.toml", speeches, ledger, 5.0)
    fedsim_ok("run", config, "--out", tmp_path / "first")
    other = fedsim("run", config, "--out", tmp_path / "other", "--set", "privacy.shared.epsilon=9")
    assert (other.returncode, (tmp_path / "other").exists()) == (2, False)
    assert "runs that share a ledger share its budget" in other.stderr
    for content in ("", "{}", "[]", '{"version": 7}', ledger.read_text()[:-40]):
        ledger.write_text(content)
        broken = fedsim("run", config, "--out", tmp_path / "broken")
        assert (broken.returncode, (tmp_path / "broken").exists()) == (2, False)
        assert f"Error: shared ledger {ledger}" in broken.stderr
        assert fedsim("account", "ledger", ledger).returncode == 2


@pytest.mark.parametrize(
    ("strategy", "privacy", "message"),
    [
        ({"sampling": {"kind": "shuffled"}}, {}, "gives no guarantee"),
        ({"name": "non-private"}, {"noise_multiplier": None, "delta": None}, "has no noise"),
        ({}, {"noise_multiplier": 0.0}, "has no noise"),
    ],
)
def test_what_cannot_share(
    speeches: Path, tmp_path: Path, strategy: dict[str, Any], privacy: dict[str, Any], message: str
) -> None:
    shared = {"ledger": str(tmp_path / "people.json"), "epsilon": 9.0, "delta": 1e-3}
    sections = {"strategy": strategy, "privacy": {"shared": shared, **privacy}}
    config = write_config(tmp_path / "mine.toml", speeches, **sections)
    done = fedsim("run", config, "--out", tmp_path / "out")
    assert message in done.complaint
    assert not (tmp_path / "people.json").exists()
    assert not (tmp_path / "out").exists()


def test_a_sweeps_runs_are_registered_together(speeches: Path, tmp_path: Path) -> None:
    """Budget for both by tight composition, not by the filter: both are finished all the same.

    A run that is chosen after them finds the ledger closed.
    """
    ledger = tmp_path / "people.json"
    budget = epsilon(COST, 8, 1e-3) * (1.0 + 1e-6)
    assert budget < budget_for(8, 1e-3)
    config = write(tmp_path / "mine.toml", speeches, ledger, budget)
    rates = ("--vary", "server.learning_rate=0.1,0.2")
    fedsim_ok("compare", config, *rates, "--out", tmp_path / "both")
    found = read_shared(ledger)
    assert (found.order, found.registered) == (None, ((COST, 8),))
    assert found.ledger.costs == [(COST, 8)]
    assert len({item.release for item in found.ledger.items}) == 2
    said = fedsim("account", "ledger", ledger).stdout
    assert "tight composition of what was fixed before the first release" in said
    later = fedsim("run", config, "--out", tmp_path / "later", "--set", "server.learning_rate=0.3")
    assert later.returncode == 3
    assert "pays for 0 of the 4 rounds of this run" in later.stderr
    assert "was registered before its first release" in later.stderr


def test_a_run_with_one_price_is_spent_with_its_first_release(tmp_path: Path) -> None:
    """Nothing of it is still registered then, however few rounds it came to."""
    whole = RoundCost(BalancedSampling(20, 2), 1.5)
    terms = SharedLedger(epsilon(whole, 20, 1e-3) * (1.0 + 1e-6), 1e-3, BOTH)
    account = SharedAccount(tmp_path / "people.json", terms)
    account.charge(0, whole, "kept:one", 20, own=Ledger())
    assert read_shared(account.path).order is None
    said = fedsim("account", "ledger", account.path).stdout
    assert "All 20 releases, and the 0 still registered" in said
    assert fedsim_json("account", "ledger", account.path)["spent_share"] == 1.0


def _charge_many(path: Path, name: str, start: Barrier) -> None:
    account = SharedAccount(path, SharedLedger(100.0, 1e-5, BOTH))
    start.wait()
    for round in range(40):
        account.charge(round, COST, name, 40 - round, own=Ledger())


def test_processes_that_charge_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")  # one import of torch for the three
    context.set_forkserver_preload([__name__])
    start = context.Barrier(3)
    names = ["seeded:1", "seeded:2", "secure"]
    path = tmp_path / "people.json"
    workers = [context.Process(target=_charge_many, args=(path, name, start)) for name in names]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert {
        item.release: item.num_rounds for item in read_shared(path).ledger.items
    } == dict.fromkeys(names, 40)


def test_what_another_process_charged_meanwhile_counts(tmp_path: Path) -> None:
    terms = SharedLedger(budget_for(5, 1e-5), 1e-5, BOTH)
    one, two = (SharedAccount(tmp_path / "people.json", terms) for _ in range(2))
    one.charge(0, COST, "seeded:1", 2, own=Ledger())
    for round in range(3):
        two.charge(round, COST, "seeded:2", 3, own=Ledger())
    one.charge(1, COST, "seeded:1", 1, own=Ledger())
    with pytest.raises(BudgetSpentError, match="round 2: this release"):
        one.charge(2, COST, "seeded:1", 1, own=Ledger())
    one.charge(1, COST, "seeded:1", 1, own=Ledger())  # a repeated draw is paid for
    assert read_shared(tmp_path / "people.json").ledger.num_releases == 5


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": "8"},
        {"epsilon": True},
        {"epsilon": float("inf")},
        {"epsilon": -1.0},
        {"delta": 1.0},
        {"relation": "none"},
        {"ledger": {"version": 9}},
        {"more": 1},
        {"version": 3},
        {"version": True},
        {"version": 1},
        {"order": 1.0},
        {"order": "4"},
        {"registered": {}},
        {"registered": [{"cost": COST.to_json(), "rounds": 0}]},
        {"registered": [{"cost": COST.to_json()}]},
        {"registered": [{"cost": {}, "rounds": 1}]},
    ],
)
def test_a_malformed_shared_ledger_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "people.json"
    ledger = Ledger().charge(0, COST, "secure")
    good = SharedLedger(8.0, 1e-5, Relation.REPLACE, 4.0, ((COST, 3),), ledger)
    path.write_text(json.dumps(good.to_json()), encoding="utf-8")
    assert read_shared(path) == good
    path.write_text(json.dumps({**good.to_json(), **change}), encoding="utf-8")
    with pytest.raises(ConfigError, match="ledger"):
        read_shared(path)

"""Which rule a shared ledger follows: settled by what is registered before the first release."""

from __future__ import annotations

import errno
import fcntl
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsim.accounting.accountants import epsilon, epsilon_of_composition
from fedsim.accounting.events import RoundCost
from fedsim.accounting.ledger import Ledger
from fedsim.accounting.privacy_filter import RenyiFilter, best_order
from fedsim.audit.real_run import audit_run
from fedsim.cli.ledger import facts
from fedsim.config import Config
from fedsim.errors import BudgetSpentError, ConfigError
from fedsim.materials import Materials
from fedsim.runner.shared_ledger import (
    SharedAccount,
    SharedLedger,
    _known_beforehand,
    read_shared,
    register_together,
)
from fedsim.runner.training import train
from fedsim.sampling import FixedSizeSampling, PoissonSampling, Relation
from fedsim.state import ServerState
from fedsim.strategy import build_plan
from tests.conftest import small_config
from tests.unit.mechanism.test_round import Pull

BOTH = Relation.ADD_OR_REMOVE
DELTA = 1e-5
COST = RoundCost(PoissonSampling(0.25), 2.0)
OTHER = RoundCost(PoissonSampling(0.1), 1.5)


def account(tmp_path: Path, budget: float) -> SharedAccount:
    return SharedAccount(tmp_path / "people.json", SharedLedger(budget, DELTA, BOTH))


def charge(shared: SharedAccount, cost: RoundCost, rounds: int, release: str = "secure") -> int:
    """Charge round after round and return how many were let pass."""
    for round in range(rounds):
        try:
            shared.charge(round, cost, release, rounds - round, own=Ledger())
        except BudgetSpentError:
            return round
    return rounds


def test_runs_chosen_after_looking_are_paid_for_by_the_filter(tmp_path: Path) -> None:
    """Their tight composition would have let more pass: what that lets pass is no promise."""
    tight = epsilon_of_composition([(COST, 20), (OTHER, 20)], DELTA)
    shared = account(tmp_path, tight)
    assert charge(shared, COST, 20) == 20
    done = charge(shared, OTHER, 20)
    found = read_shared(shared.path)
    assert found.order == best_order(tight, DELTA, BOTH, [(COST, 20)])
    rule = RenyiFilter(tight, DELTA, BOTH, found.order or 0.0)
    assert 0 < done < 20
    assert rule.pays_for([(COST, 20), (OTHER, done)])
    assert not rule.pays_for([(COST, 20), (OTHER, done + 1)])
    assert found.registered == ((COST, 20),)
    assert dict(found.ledger.costs) == {COST: 20, OTHER: done}


def test_a_file_that_vanishes_during_a_run_is_no_new_budget(tmp_path: Path) -> None:
    """Nor is one in its place that lacks what the run has released."""
    shared = account(tmp_path, epsilon_of_composition([(COST, 20)], DELTA))
    own = Ledger()
    for round in range(3):
        shared.charge(round, COST, "secure:a", 10 - round, own=own)
        own = own.charge(round, COST, "secure:a")
    whole = shared.path.read_text()
    for others in (0, 3):
        shared.path.unlink()
        assert charge(shared, COST, others, "secure:b") == others
        with pytest.raises(ConfigError, match="lacks 3 releases of this run"):
            shared.charge(3, COST, "secure:a", 7, own=own)
        shared.path.write_text(whole)
    shared.charge(3, COST, "secure:a", 7, own=own)
    assert read_shared(shared.path).ledger.num_releases == 4


def test_a_runs_own_ledger_is_told_from_a_shared_one(tmp_path: Path) -> None:
    own = tmp_path / "ledger.json"
    own.write_text(json.dumps(Ledger().to_json()), encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"is the ledger of one run, .* give a file that runs share"
    ):
        read_shared(own)


def test_runs_registered_together_compose_tightly_and_close_the_ledger(tmp_path: Path) -> None:
    """The filter would not pay for both; that they were fixed in advance does, in any order."""
    tight = epsilon_of_composition([(COST, 20), (OTHER, 20)], DELTA)
    shared = account(tmp_path, tight * (1.0 + 1e-6))
    shared.register([(COST, 20), (OTHER, 20)])
    assert charge(shared, OTHER, 10) == 10
    assert charge(shared, COST, 20) == 20
    with pytest.raises(BudgetSpentError, match="was registered before its first release"):
        shared.charge(0, RoundCost(PoissonSampling(1e-6), 50.0), "secure", 1, own=Ledger())
    assert charge(shared, OTHER, 11, "seeded:more") == 10
    found = facts(read_shared(shared.path))
    assert (found["basis"], found["spent_share"]) == ("fixed in advance", 1.0)
    assert found["epsilon"] == pytest.approx(tight, rel=1e-3)
    assert "tight composition of what was fixed before the first release" in found["statement"]
    # A file that holds more than was registered, which fedsim would not have written.
    held = read_shared(shared.path)
    found = facts(replace(held, ledger=held.ledger.charge(99, OTHER, "secure:by hand")))
    assert found["epsilon"] is None
    assert "is not proved for them" in found["statement"]


def test_what_is_registered_counts_whole_however_little_of_it_is_released(tmp_path: Path) -> None:
    """Who stops early may have stopped for what was seen."""
    tight = epsilon_of_composition([(COST, 20), (OTHER, 20)], DELTA)
    shared = account(tmp_path, tight * (1.0 + 1e-6))
    shared.register([(COST, 20), (OTHER, 20)])
    charge(shared, COST, 1)
    assert facts(read_shared(shared.path))["epsilon"] == pytest.approx(tight, rel=1e-3)
    assert charge(shared, RoundCost(PoissonSampling(0.1), 40.0), 1) == 0


def test_the_rule_does_not_depend_on_what_was_released(tmp_path: Path) -> None:
    shared = account(tmp_path, 8.0)
    charge(shared, COST, 3)
    before = read_shared(shared.path)
    charge(shared, OTHER, 5)
    shared.register([(OTHER, 1000), (COST, 1000)])  # after a release: nothing is registered
    found = read_shared(shared.path)
    assert (found.order, found.registered) == (before.order, ((COST, 3),))
    with pytest.raises(ValueError, match="the ledger holds releases"):
        found.registering([(COST, 1)])


def test_registering_the_same_again_adds_nothing(tmp_path: Path) -> None:
    """As a comparison does that was killed before its first release; another one adds to it."""
    shared = account(tmp_path, 8.0)
    for _ in range(2):
        shared.register([(COST, 3), (OTHER, 2)])
        assert read_shared(shared.path).registered == ((COST, 3), (OTHER, 2))
    shared.register([(OTHER, 5)])
    assert read_shared(shared.path).registered == ((COST, 3), (OTHER, 7))


def test_a_first_run_alone_may_spend_the_budget_to_the_tight_end(tmp_path: Path) -> None:
    budget = epsilon(COST, 30, DELTA) * (1.0 + 1e-6)
    shared = account(tmp_path, budget)
    assert charge(shared, COST, 100) == 30
    assert read_shared(shared.path).registered == ((COST, 30),)
    rule = RenyiFilter(budget, DELTA, BOTH, best_order(budget, DELTA, BOTH, [(COST, 30)]))
    assert not rule.pays_for([(COST, 30)])


def test_without_noise_nothing_is_released(tmp_path: Path) -> None:
    shared = account(tmp_path, 8.0)
    assert charge(shared, RoundCost(PoissonSampling(0.1), 0.0), 1) == 0
    assert not shared.path.exists()


def test_mechanisms_that_no_accountant_composes_are_paid_for_by_the_filter(tmp_path: Path) -> None:
    path = tmp_path / "people.json"
    shared = SharedAccount(path, SharedLedger(2.0, DELTA, Relation.REPLACE))
    fixed = RoundCost(FixedSizeSampling(10, 1000), 4.0)
    assert charge(shared, fixed, 20) == 20
    assert 0 < charge(shared, RoundCost(PoissonSampling(0.1), 2.0), 500) < 500
    found = facts(read_shared(path))
    assert found["basis"] == "filter"
    assert found["if_fixed_in_advance"]["epsilon"] is None


def test_a_ledger_that_holds_more_than_its_filter_pays_for_promises_nothing(tmp_path: Path) -> None:
    path = tmp_path / "people.json"
    budget = epsilon(COST, 50, DELTA)
    ledger = Ledger()
    for round in range(50):
        ledger = ledger.charge(round, COST, "secure")
    order = best_order(budget, DELTA, BOTH)
    beyond = SharedLedger(budget, DELTA, BOTH, order, ledger=ledger)
    path.write_text(json.dumps(beyond.to_json()), encoding="utf-8")
    found = facts(read_shared(path))
    assert found["epsilon"] is None
    assert "is not proved" in found["statement"]
    assert charge(account(tmp_path, budget), COST, 1) == 0


def test_the_filters_statement_says_what_it_costs(tmp_path: Path) -> None:
    """The promise is the budget, not what is spent of it: how much is spent was chosen too."""
    shared = account(tmp_path, 8.0)
    charge(shared, COST, 3)
    found = facts(read_shared(shared.path))
    alone = epsilon(COST, 3, DELTA)
    assert found["registered_alone"] == pytest.approx(alone)
    charge(shared, OTHER, 5)
    found = facts(read_shared(shared.path))
    both = epsilon_of_composition([(COST, 3), (OTHER, 5)], DELTA)
    in_advance = found["if_fixed_in_advance"]
    assert (found["basis"], found["epsilon"], found["registered_alone"]) == ("filter", 8.0, None)
    assert in_advance["epsilon"] == pytest.approx(both)
    assert both < in_advance["epsilon_by_renyi"] < 8.0
    assert 0.0 < found["spent_share"] < 1.0
    for part in ("privacy filter", "Had what is released all been fixed in advance", "order"):
        assert part in found["statement"]


def test_a_budget_is_not_kept_where_nothing_can_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_file: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(ConfigError, match="a file system without locks"):
        account(tmp_path, 8.0).charge(0, COST, "secure", 1, own=Ledger())
    assert not (tmp_path / "people.json").exists()


def test_releases_that_the_ledger_would_not_know_of_are_refused(
    speeches: Path, tmp_path: Path, materials: Materials
) -> None:
    shared = {"ledger": str(tmp_path / "people.json"), "epsilon": 8.0, "delta": 1e-3}
    config = small_config(speeches, privacy={"shared": shared})
    with pytest.raises(ConfigError, match=r"privacy\.shared: an audit"):
        audit_run(config, 10)
    assert not (tmp_path / "people.json").exists()


def test_only_runs_that_share_are_registered_together(speeches: Path, tmp_path: Path) -> None:
    def sharing(ledger: str, noise: float, **changes: dict[str, Any]) -> Config:
        shared = {"ledger": str(tmp_path / ledger), "epsilon": 50.0, "delta": 1e-3}
        privacy = {"shared": shared, "noise_multiplier": noise}
        return small_config(speeches, privacy=privacy, **changes)

    register_together(
        [
            sharing("two.json", 1.0),
            sharing("one.json", 1.0),
            small_config(speeches),
            sharing("two.json", 2.0),
            sharing("two.json", 3.0, data={"user_column": "nobody"}),  # its run will say so
        ]
    )
    assert not (tmp_path / "one.json").exists()
    found = read_shared(tmp_path / "two.json")
    assert [(cost.noise_multiplier, rounds) for cost, rounds in found.registered] == [
        (1.0, 4),
        (2.0, 4),
    ]
    assert math.isfinite(found.order or math.inf)
    assert found.ledger == Ledger()


@pytest.mark.parametrize(
    ("data", "privacy", "known"),
    [
        ({}, {}, True),
        ({"owners_column": "readers"}, {}, False),
        ({"preparation": [{"step": "receivers"}]}, {}, False),
        ({"owners_column": "readers"}, {"declared_num_examples": 90}, True),
        ({"owners_column": "readers"}, {"noise": "seeded"}, True),
        ({"held_out_examples": 0.1}, {}, False),
        ({"canaries": {"num_users": 2, "num_examples": 2, "shared_tokens": 3}}, {}, False),
    ],
)
def test_what_a_secret_order_keeps_is_not_known_beforehand(
    data: dict[str, Any], privacy: dict[str, Any], known: bool
) -> None:
    """Of texts with several owners another secret keeps another number, hence another rate."""
    config = small_config(
        Path("unused"),
        data={"held_out_examples": 0.0, **data},
        strategy={"name": "els", "cohort_size": None, "batch_size": 6},
        privacy={"noise": "secure", **privacy},
    )
    assert _known_beforehand(config) is known


def test_rounds_that_would_charge_no_shared_ledger_are_refused(
    speeches: Path, materials: Materials, tmp_path: Path
) -> None:
    """From Python, round by round: four rounds of ε = 8 went past a budget of 1 so."""
    ledger = tmp_path / "people.json"
    shared = {"ledger": str(ledger), "epsilon": 1.0, "delta": 1e-3}
    config = small_config(speeches, privacy={"shared": shared})
    start = ServerState(0, materials.model.initial_parameters())
    plan = build_plan(config, materials)
    with pytest.raises(ConfigError, match=r"privacy\.shared\.ledger = .*people\.json: rounds made"):
        train(start, plan, Pull(), 4)
    assert not ledger.exists()


@pytest.mark.parametrize("key", ["epsilon", "order"])
def test_a_number_that_no_float_holds_is_refused(tmp_path: Path, key: str) -> None:
    shared = account(tmp_path, 5.0)
    charge(shared, COST, 1)
    content = json.loads(shared.path.read_text(encoding="utf-8"))
    shared.path.write_text(json.dumps({**content, key: 10**400}), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"{key} = 1000"):
        read_shared(shared.path)

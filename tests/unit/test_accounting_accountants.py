"""Which accountant a name means, what it refuses, and the edges of ε and δ."""

from __future__ import annotations

import logging
import math

import pytest

from fedsim.accounting.accountants import (
    ACCOUNTANTS,
    delta,
    epsilon,
    epsilon_of_composition,
    resolve_accountant,
)
from fedsim.accounting.events import RoundCost
from fedsim.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "units", "meant"),
    [
        (None, 1, "pld"),
        (None, 2, "mixture"),
        ("pld", 1, "pld"),
        ("pld", 2, "mixture"),
        ("mixture", 1, "mixture"),
        ("mixture", 8, "mixture"),
        ("rdp", 1, "rdp"),
    ],
)
def test_names(name: str | None, units: int, meant: str) -> None:
    resolved = resolve_accountant(name, units)
    assert resolved == ACCOUNTANTS[meant]
    assert resolve_accountant(resolved, units) == resolved
    assert resolved.relation == "add-or-remove-one user"
    assert resolved.citation


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(ConfigError, match=r"'moment'.*mixture, pld, rdp"):
        resolve_accountant("moment", 1)


@pytest.mark.parametrize("accountant", ["rdp", ACCOUNTANTS["rdp"]])
def test_rdp_cannot_account_several_units(accountant: str) -> None:
    with pytest.raises(ConfigError, match="8 units per user; use 'mixture'"):
        resolve_accountant(accountant, 8)
    with pytest.raises(ConfigError, match="units per user"):
        epsilon(RoundCost(0.1, 1.0, 8), 1, 1e-5, accountant)


@pytest.mark.parametrize("accountant", ["pld", "rdp", "mixture"])
def test_no_noise_and_no_rounds(accountant: str) -> None:
    silent = RoundCost(0.1, 0.0)
    assert epsilon(silent, 3, 1e-5, accountant) == math.inf
    assert delta(silent, 3, 1.0, accountant) == 1.0
    assert epsilon(silent, 0, 1e-5, accountant) == 0.0
    assert delta(silent, 0, 1.0, accountant) == 0.0


def test_what_is_out_of_range_is_named() -> None:
    cost = RoundCost(0.1, 1.0)
    for wrong in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="delta = "):
            epsilon(cost, 1, wrong)
    with pytest.raises(ConfigError, match="epsilon = -1"):
        delta(cost, 1, -1.0)
    with pytest.raises(ConfigError, match="rounds = -1"):
        epsilon(cost, -1, 1e-5)


def test_rounds_of_different_cost_add_up() -> None:
    one, two = RoundCost(0.1, 4.0), RoundCost(0.2, 6.0)
    for accountant in ("mixture", "rdp"):
        both = epsilon_of_composition([(one, 5), (two, 5)], 1e-5, accountant)
        assert both == pytest.approx(
            epsilon_of_composition([(two, 5), (one, 5)], 1e-5, accountant), rel=1e-9
        )
        assert both > max(epsilon(cost, 5, 1e-5, accountant) for cost in (one, two))
        split = epsilon_of_composition([(one, 2), (one, 3)], 1e-5, accountant)
        assert split == pytest.approx(epsilon(one, 5, 1e-5, accountant), rel=1e-6)
    assert epsilon_of_composition([(one, 5), (RoundCost(0.1, 0.0), 1)], 1e-5) == math.inf


def test_units_of_different_numbers_need_the_mixture() -> None:
    costs = [(RoundCost(0.1, 6.0), 3), (RoundCost(0.1, 6.0, 2), 3)]
    assert epsilon_of_composition(costs, 1e-5) == epsilon_of_composition(costs, 1e-5, "mixture")
    with pytest.raises(ConfigError, match="2 units per user"):
        epsilon_of_composition(costs, 1e-5, "rdp")


def test_rdp_s_lines_per_left_out_order_stay_away(caplog: pytest.LogCaptureFixture) -> None:
    before = logging.getLogger("absl").level
    with caplog.at_level(logging.WARNING):
        epsilon(RoundCost(0.1, 0.76), 60, 1e-5, "rdp")  # says six of them otherwise
    assert not caplog.records
    assert logging.getLogger("absl").level == before

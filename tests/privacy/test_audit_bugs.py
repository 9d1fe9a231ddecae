"""Nineteen deliberate bugs: each is seen, and the true code in the same game is let pass."""

from __future__ import annotations

import math

import pytest
import torch

from fedsim.execution import Accumulator, Update
from tests.privacy.planted_bugs import bugs
from tests.privacy.planted_bugs.game import planted_unit
from tests.privacy.planted_bugs.mutants import (
    Mutant,
    judge,
    mutants,
    no_stream_is_used_twice,
)

MUTANTS = mutants()


def test_there_are_nineteen() -> None:
    assert len({mutant.bug for mutant in MUTANTS}) == 19


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.bug)
def test_a_deliberate_bug_is_caught(mutant: Mutant) -> None:
    verdict = judge(mutant, trials=150)
    assert verdict.caught_by != "nothing"
    assert not verdict.false_alarm
    if mutant.contract is None:
        assert verdict.wrong.epsilon > verdict.claimed_wrong
    assert verdict.right.epsilon <= verdict.claimed_right


def test_what_releases_cannot_show_fails_a_contract_that_the_true_plan_keeps() -> None:
    checked = [mutant for mutant in MUTANTS if mutant.contract is not None]
    contracts = [mutant.contract for mutant in checked]
    assert contracts == [no_stream_is_used_twice]
    for mutant, contract in zip(checked, contracts, strict=True):
        assert contract is not None and contract(mutant.right.executor.plan)
        assert not contract(mutant.wrong.executor.plan)


def test_what_the_true_code_does_where_the_bugs_are() -> None:
    with pytest.raises(ValueError, match=r"weight = 4\.0 of unit 0"):
        planted_unit(0, 4.0)
    layout = {"weight": torch.zeros(2)}
    true, lax = (
        kind(layout, bugs.Unclipped(l2_clip_norm=1.0)) for kind in (Accumulator, bugs.PassesNaN)
    )
    for one in (true, lax):
        one.add(Update({"weight": torch.tensor([math.nan, 0.0])}, 0.0, 1), 1.0)
    assert torch.equal(true.total().values["weight"], torch.zeros(2, dtype=torch.float64))
    assert true.total().num_non_finite == 1
    assert lax.total().values["weight"].isnan().any()

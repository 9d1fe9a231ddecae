"""A listener with far more texts than the group size: what bounding leaves, and what is shown."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from fedsim.data.bounding import Bounding, Order
from fedsim.sampling import Relation
from tests.privacy.mechanism_audit.mechanism import SETTINGS, audit_mechanism
from tests.privacy.mechanism_audit.worst_graph import AUTHORS, listeners_share
from tests.privacy.planted_bugs.bugs import by_author_alone

(SETTING,) = [each for each in SETTINGS if each.relation is Relation.FIXED_GRAPH]
DELTA, TRIALS = 1e-3, 1000


@pytest.mark.parametrize("order", get_args(Order))
@pytest.mark.parametrize("bounding", get_args(Bounding))
@pytest.mark.parametrize("group_size", [1, 2, 5])
def test_every_rule_leaves_a_listener_the_group_size(
    group_size: int, bounding: Bounding, order: Order
) -> None:
    kept, of_listener = listeners_share(group_size, bounding=bounding, order=order)
    assert len(of_listener) == group_size
    assert len(kept) == group_size + 1
    assert np.isin(of_listener, kept).all()


def test_looking_at_authors_alone_leaves_all() -> None:
    kept, of_listener = listeners_share(2, by_author_alone)
    assert (len(kept), len(of_listener)) == (AUTHORS + 1, AUTHORS)


@pytest.mark.parametrize("target", [1.0, 2.0])
def test_bounding_is_never_suspected_and_its_absence_always_seen(target: float) -> None:
    """Fifty audits of each, a thousand runs with the listener and a thousand without.

    Suspected in one audit of ten it would be seen in all but half a per cent of the cases.
    """
    plan = SETTING.plan(target, DELTA)
    for units, holds in ((SETTING.target_units, True), (AUTHORS, False)):
        audits = [
            audit_mechanism(
                plan, SETTING.rounds, delta=DELTA, trials=TRIALS, seed=seed, target_units=units
            )
            for seed in range(50)
        ]
        assert {audit.holds for audit in audits} == {holds}
        assert {audit.units_per_user for audit in audits} == {units}
        assert audits[0].claimed_epsilon == pytest.approx(target, rel=5e-3)

"""A search audited whole.

A worst-case user, tuned end to end: real rounds, real private scores, the real law of the number of
trials. The claim of the whole search must hold, and a pipeline that charges the winner's run and
its score alone, as if it had been the only one, must be refuted.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple

from fedsim.accounting.accountants import epsilon_of_composition
from fedsim.accounting.search import Search
from fedsim.plan import RoundPlan
from fedsim.sampling import PoissonSampling
from tests.privacy.mechanism_audit.mechanism import Setting, audit_mechanism

TARGET, DELTA, ROUNDS = 1.0, 1e-2, 2
SEARCH = Search(10.0, ROUNDS, 50.0)
SETTING = Setting("uls, a search", PoissonSampling(0.5), 1, ROUNDS, search=SEARCH)


class Verdict(NamedTuple):
    """What an audit showed of the whole search, and what was claimed of it."""

    shown: float
    claimed: float

    @property
    def holds(self) -> bool:
        """Whether the claim survives."""
        return self.shown <= self.claimed


@cache
def plans() -> tuple[RoundPlan, RoundPlan]:
    """The plan whose whole search has ε, and that of which only the winner's run has."""
    whole = SETTING.plan(TARGET, DELTA)
    alone = replace(SETTING, search=None).plan(TARGET, DELTA)
    return whole, replace(whole, noise_multiplier=alone.noise_multiplier)


def paid_for(seed: int, trials: int) -> Verdict:
    """Audit a search that is charged as one."""
    found = audit_mechanism(plans()[0], ROUNDS, delta=DELTA, trials=trials, seed=seed)
    return Verdict(found.bound.epsilon, found.claimed_epsilon)


def winner_alone(seed: int, trials: int) -> Verdict:
    """Audit a search of which only the winner's rounds and score are charged."""
    plan = plans()[1]
    found = audit_mechanism(plan, ROUNDS, delta=DELTA, trials=trials, seed=seed)
    return Verdict(found.bound.epsilon, epsilon_of_composition(plan.cost.trial, DELTA))

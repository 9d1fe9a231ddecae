"""`python -m tests.privacy.planted_bugs.searches [REPETITIONS]`: a search audited whole.

A worst-case user, tuned end to end: real rounds, real private scores, the real law of the number of
trials. The claim of the whole search must hold, and a pipeline that charges the winner's run and
its score alone, as if it had been the only one, must be refuted.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from fedsim.accounting.accountants import epsilon_of_composition
from fedsim.accounting.search import Search
from fedsim.audit.mechanism import Setting, audit_mechanism
from fedsim.plan import RoundPlan
from fedsim.sampling import PoissonSampling

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
    found = audit_mechanism(plans()[0], ROUNDS, delta=DELTA, trials=trials, block=trials, seed=seed)
    return Verdict(found.bound.epsilon, found.claimed_epsilon)


def winner_alone(seed: int, trials: int) -> Verdict:
    """Audit a search of which only the winner's rounds and score are charged."""
    plan = plans()[1]
    found = audit_mechanism(plan, ROUNDS, delta=DELTA, trials=trials, block=trials, seed=seed)
    return Verdict(found.bound.epsilon, epsilon_of_composition(plan.cost.trial, DELTA))


def main(repetitions: int, trials: int = 40_000) -> int:
    """Print how many hold and how many are refuted; return 1 unless they are enough of them."""
    right = [paid_for(seed, trials) for seed in range(repetitions)]
    wrong = [winner_alone(seed, trials) for seed in range(repetitions)]
    held, refuted = sum(v.holds for v in right), sum(not v.holds for v in wrong)
    print(  # noqa: T201  (what it is for)
        f"charged whole, ε = {right[0].claimed:.3f} at δ = {DELTA:g}: holds in {held} of "
        f"{repetitions} (shown {max(v.shown for v in right):.3f} at most)\n"
        f"winner alone, ε = {wrong[0].claimed:.3f}: refuted in {refuted} of {repetitions} (shown "
        f"{min(v.shown for v in wrong):.3f} to {max(v.shown for v in wrong):.3f})"
    )
    return int(held < 0.95 * repetitions or 2 * refuted <= repetitions)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))

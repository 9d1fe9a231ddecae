"""Group-privacy accountant: user-level ε from example-level ε, for any mechanism.

A mechanism that is (ε₁, δ₁)-DP for one example is (k ε₁, δ₁ (e^(k ε₁) - 1) / (e^ε₁ - 1))-DP for k
examples (Vadhan 2017, Lemma 2.2; Chua et al. 2024, §2). Its ε grows exponentially in k, while that
of the mixture accountant is nearly linear (Charles et al. 2024, Figure 1). Use it for comparison.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedsim.accounting.events import Composition, Profile, RoundCost
from fedsim.accounting.methods.accountant import Accountant
from fedsim.accounting.methods.pld import solve_epsilon
from fedsim.sampling import Relation

_RESOLUTION = 1e-18  # smallest δ of one example that this accountant uses


@dataclass(frozen=True)
class GroupPrivacyAccountant(Accountant):
    """The smallest k ε₁ over all ε₁; inf if δ₁ would be below the resolution of a PLD."""

    def refusal(self, cost: RoundCost, relation: Relation) -> str | None:
        """Return why this accountant cannot prove anything about a round, or None."""
        if cost.sampling.kind not in ("poisson", "shuffled"):
            return f"accounts Poisson sampling only, not {cost.sampling.kind!r}"
        if relation is Relation.REPLACE:
            return "needs adding or removing one example at a time; use add-or-remove-one"
        return None

    def epsilon(self, costs: Composition, delta: float, relation: Relation) -> float:
        """Return the smallest ε that group privacy gives at δ; inf if there is none."""
        size = max(cost.units_per_user for cost, _ in costs)
        for_one = _for_one_example(costs)
        resolution = _RESOLUTION
        last, pld = solve_epsilon(for_one, resolution, relation)
        while not math.isfinite(last) and resolution < delta:  # no grid resolves this δ: raise it
            resolution *= 10.0
            last, pld = solve_epsilon(for_one, resolution, relation)
        if not math.isfinite(last):
            return math.inf

        def holds(per_example: float) -> bool:
            delta_one = max(pld.get_delta_for_epsilon(per_example), _RESOLUTION)
            return math.log(delta_one) + _log_growth(size, per_example) <= math.log(delta)

        # The left side rises and then falls, like a Gaussian tail: there is one crossing.
        if holds(0.0):
            return 0.0
        if not holds(last):
            return math.inf
        low, high = 0.0, last
        while high - low > 1e-6 * high:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if holds(middle) else (middle, high)
        return size * high

    def profile(self, costs: Composition, delta: float, relation: Relation) -> Profile:
        """Return δ as a function of ε."""
        size = max(cost.units_per_user for cost, _ in costs)
        settled = max(delta / size, _RESOLUTION)
        for_one = solve_epsilon(_for_one_example(costs), settled, relation)[1].deltas

        def at(epsilons: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            each = epsilons / size
            growth = np.array([_log_growth(size, one) for one in each.tolist()])
            logs = np.log(np.maximum(for_one(each), _RESOLUTION)) + growth
            deltas: npt.NDArray[np.float64] = np.exp(np.minimum(logs, 0.0))
            return deltas

        return at


def _for_one_example(costs: Composition) -> Composition:
    return [(dataclasses.replace(cost, units_per_user=1), rounds) for cost, rounds in costs]


def _log_growth(size: int, per_example: float) -> float:
    """Return log((e^(k ε₁) - 1) / (e^ε₁ - 1)); log k at ε₁ = 0."""
    if per_example == 0.0:
        return math.log(size)
    return (size - 1) * per_example + math.log(
        math.expm1(-size * per_example) / math.expm1(-per_example)
    )

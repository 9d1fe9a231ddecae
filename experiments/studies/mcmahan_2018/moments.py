"""The moments accountant, for comparison with published tables."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedsim.accounting.events import Composition, Profile, RoundCost
from fedsim.accounting.methods.accountant import Accountant
from fedsim.accounting.methods.renyi import rdp_of
from fedsim.sampling import Relation

_ORDERS = range(2, 34)


@dataclass(frozen=True)
class MomentsAccountant(Accountant):
    """The accountant of McMahan et al. 2018: integer orders 2 to 33 and the first conversion.

    ε = min over α of RDP(α) + log(1/δ) / (α - 1) (Abadi et al. 2016, Theorem 2). It is valid, but
    looser than all later accountants; use it for comparison with published tables.
    """

    def refusal(self, cost: RoundCost, relation: Relation) -> str | None:
        """Return why this accountant cannot prove anything about a round, or None."""
        if cost.units_per_user > 1:
            return f"cannot account {cost.units_per_user} units per user; use 'mixture'"
        if cost.sampling.kind not in ("poisson", "shuffled"):
            return f"accounts Poisson sampling only, not {cost.sampling.kind!r}"
        if relation is Relation.REPLACE:
            return (
                "proves Poisson sampling only under add-or-remove-one and zero-out-one; use 'pld'"
            )
        return None

    def epsilon(self, costs: Composition, delta: float, relation: Relation) -> float:
        """Return ε at δ."""
        orders, divergences = self._divergences(costs, relation)
        return float(np.min(divergences + math.log(1.0 / delta) / (orders - 1.0)))

    def profile(self, costs: Composition, delta: float, relation: Relation) -> Profile:
        """Return δ as a function of ε."""
        orders, divergences = self._divergences(costs, relation)

        def at(epsilons: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            logs = ((orders - 1.0) * (divergences - epsilons[:, None])).min(axis=1)
            deltas: npt.NDArray[np.float64] = np.exp(np.minimum(logs, 0.0))
            return deltas

        return at

    @staticmethod
    def _divergences(
        costs: Composition, relation: Relation
    ) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray]:
        accountant = rdp_of(tuple(costs), relation, tuple(_ORDERS))
        return accountant.orders.astype(np.float64), accountant.rdp

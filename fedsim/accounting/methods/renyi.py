"""The Rényi accountant: dp_accounting's RDP."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass

import dp_accounting
import numpy as np

from fedsim.accounting.events import Composition, Profile, RoundCost
from fedsim.accounting.methods.accountant import Accountant
from fedsim.sampling import Relation

# Hide dp_accounting's log line for each order that it leaves out: the bound holds without it.
logging.getLogger("absl").addFilter(
    lambda record: "rdp_privacy_accountant" not in record.pathname or record.levelno > 30
)


@dataclass(frozen=True)
class RdpAccountant(Accountant):
    """dp_accounting's RDP accountant: looser than PLD, and the only one for fixed-size cohorts."""

    def refusal(self, cost: RoundCost, relation: Relation) -> str | None:
        """Return why this accountant cannot prove anything about a round, or None."""
        if cost.units_per_user > 1:
            return f"cannot account {cost.units_per_user} units per user; use 'mixture'"
        kind = cost.sampling.kind
        if (own := cost.sampling.accountant) not in (None, self.name):
            return f"has no RDP of {kind!r} sampling; use {own!r}"
        if not _supported(cost, relation):
            return f"has no RDP of {kind!r} sampling; use 'pld'"
        if kind == "fixed-size" and relation is not Relation.REPLACE:
            return "proves a fixed cohort size only under replace-one"
        if kind != "fixed-size" and relation is Relation.REPLACE:
            return (
                "proves Poisson sampling only under add-or-remove-one and zero-out-one; use 'pld'"
            )
        return None

    def epsilon(self, costs: Composition, delta: float, relation: Relation) -> float:
        """Return ε at δ."""
        return float(rdp_of(tuple(costs), relation).get_epsilon(delta))

    def profile(self, costs: Composition, delta: float, relation: Relation) -> Profile:
        """Return δ as a function of ε."""
        composed = rdp_of(tuple(costs), relation)
        return lambda epsilons: np.array([composed.get_delta(one) for one in epsilons.tolist()])

    def renyi(self, cost: RoundCost, relation: Relation, order: float) -> tuple[float, float]:
        """Return dp_accounting's bound on the Rényi divergence of one round; inf if it has none."""
        return float(rdp_of(((cost, 1),), relation, (order,)).rdp[0]), 0.0


def _supported(cost: RoundCost, relation: Relation) -> bool:
    if cost.sampling.kind in ("truncated-poisson", "fixed-size"):
        return cost.sampling.kind == "fixed-size"
    event = cost.sampling.event(cost.noise_multiplier or 1.0, 1)
    return bool(dp_accounting.rdp.RdpAccountant(None, relation.of_dp_accounting).supports(event))


@functools.lru_cache(maxsize=32)  # several δ need the same one; each has a few hundred numbers
def rdp_of(
    costs: tuple[tuple[RoundCost, int], ...],
    relation: Relation,
    orders: tuple[float, ...] | None = None,
) -> dp_accounting.rdp.RdpAccountant:
    """Return dp_accounting's accountant after these rounds.

    `orders` are the Rényi orders > 1; without them dp_accounting uses its default orders.
    """
    accountant = dp_accounting.rdp.RdpAccountant(orders, relation.of_dp_accounting)
    for cost, rounds in costs:
        accountant.compose(cost.composed(rounds))
    return accountant

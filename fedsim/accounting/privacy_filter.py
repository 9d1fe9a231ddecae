"""Rényi privacy filter: a budget for mechanisms chosen after looking at earlier releases.

Composition of privacy loss distributions (PLDs) is proved for mechanisms fixed in advance. If the
noise, rate or length of a later run depends on the models of earlier runs, adding up PLDs and
stopping at ε proves nothing. Rényi divergences of one order, fixed in advance, may be added up this
way (Feldman & Zrnic 2021, arXiv:2008.11193). This is their filter, with a small share of δ for
infinite losses of a PLD, as in Whitehouse et al. 2023 for approximate zCDP (arXiv:2203.05481).

Proof. Fix the direction (add or remove) and the order α > 1. Each release, given all before it, is
dominated by a pair (A, B), here the rounded PLD. The loss L of the pair is infinite with
probability d under A, and E_A[e^((α-1)L); L finite] <= e^((α-1)r). A dominated pair is a
post-processing of its dominating pair (Blackwell), so we may treat the losses as the releases. Let
M = e^((α-1) Σ(L - r)) if all losses so far are finite, else 0. M is a supermartingale: r is chosen
before its L is drawn. Releases stop before Σr exceeds ρ or Σd exceeds δ₀. So
E[e^((α-1)ΣL); all finite] is at most e^((α-1)ρ) for every way to choose the releases. With
c = (1 - 1/α)^(α-1) / α, every l has (1 - e^(ε-l))⁺ <= c e^((α-1)(l-ε)). So the divergence at ε is
at most δ₀ + c e^((α-1)(ρ-ε)); the second term is the conversion of Canonne et al. 2020
(Proposition 12). ρ is chosen so that this bound equals δ.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedsim.accounting.accountants import choose
from fedsim.accounting.events import Composition, RoundCost
from fedsim.accounting.methods.composition import ComposedPld
from fedsim.accounting.methods.pld import PldAccountant, refined, single_round
from fedsim.accounting.search import Search
from fedsim.errors import ConfigError
from fedsim.sampling import PoissonSampling, Relation

CITATION = "Rényi filter at one order: Feldman and Zrnic 2021; Whitehouse et al. 2023"

ORDERS = (
    *(1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 14.0, 16.0),
    *(20.0, 24.0, 32.0, 48.0, 64.0, 128.0, 256.0, 512.0, 1024.0),
)
_INFINITE_SHARE = 1e-3  # share of δ for infinite losses, which have mass e^-50 a round
_ROUNDING = 1e-13  # relative rounding error of a moment, with room for the PLD's lowest grid point
_PLAIN = RoundCost(PoissonSampling(1.0), 10.0)


@dataclass(frozen=True)
class Price:
    """The cost of a mechanism at an order, in the more expensive direction.

    Attributes:
        renyi: the Rényi divergence of the finite losses, >= 0.
        infinite: the probability of an infinite loss.
    """

    renyi: float
    infinite: float


@dataclass(frozen=True)
class RenyiFilter:
    """An (ε, δ) budget for releases that may each be chosen after looking at earlier ones.

    Attributes:
        epsilon: ε of the budget, > 0.
        delta: δ of the budget, in (0, 1).
        relation: neighbouring relation of all releases.
        order: order of the divergences, > 1, fixed before the first release.
    """

    epsilon: float
    delta: float
    relation: Relation
    order: float

    @property
    def budget(self) -> float:
        """ρ: maximum sum of the divergences; zero or negative if the order pays for no release."""
        return self.epsilon - self._conversion

    @property
    def _conversion(self) -> float:
        """The conversion term: ε minus the divergence."""
        delta = self.delta * (1.0 - _INFINITE_SHARE)
        to_delta = (math.log(delta) + math.log(self.order)) / (self.order - 1.0)
        return math.log1p(-1.0 / self.order) - to_delta

    def spent(self, costs: Composition) -> float:
        """Return the sum of the divergences; inf if infinite losses exceed their share of δ.

        Raises:
            ConfigError: a cost has no proof under the relation.
        """
        prices = [
            (price(cost, self.relation, self.order), cost.events(rounds)) for cost, rounds in costs
        ]
        infinite = math.fsum(rounds * each.infinite for each, rounds in prices)
        finite = math.fsum(rounds * each.renyi for each, rounds in prices if rounds)
        # Written so that NaN gives inf.
        return finite if infinite <= self.delta * _INFINITE_SHARE and finite >= 0.0 else math.inf

    def pays_for(self, costs: Composition) -> bool:
        """Return whether these releases, chosen in any way, are within the budget."""
        return self.spent(costs) <= self.budget

    def converted(self, costs: Composition) -> float:
        """Return the ε of the sum of divergences at δ.

        This ε is a guarantee only for costs fixed in advance. For costs chosen after looking at
        releases, only the whole budget is a guarantee.
        """
        return max(0.0, self.spent(costs) + self._conversion) if costs else 0.0


def best_order(epsilon: float, delta: float, relation: Relation, costs: Composition = ()) -> float:
    """Return the order at which a filter can pay for these costs most often.

    It uses public numbers only. Without costs, or if no order pays for them, it returns the order
    for Gaussian releases over all units.
    """

    def times(order: float, releases: Composition) -> float:
        renyi = RenyiFilter(epsilon, delta, relation, order)
        return renyi.budget / max(renyi.spent(releases), 1e-300)

    for releases in (costs, [(_PLAIN, 1)]):
        best = max(ORDERS, key=lambda order: times(order, releases)) if releases else 0.0
        if best and times(best, releases) > 0.0:
            return best
    return max(ORDERS, key=lambda order: RenyiFilter(epsilon, delta, relation, order).budget)


@functools.lru_cache(maxsize=1024)
def price(cost: RoundCost, relation: Relation, order: float) -> Price:
    """Return the price of one event of a cost at an order > 1; infinite without noise.

    Raises:
        ConfigError: the cost has no proof under the relation.
    """
    if cost.noise_multiplier == 0.0:
        return Price(math.inf, 0.0)
    chosen, _ = choose([cost], None, relation)
    if cost.search is not None:
        return _price_of_search(cost, cost.search, relation, order)
    if not isinstance(chosen, PldAccountant):
        return Price(*chosen.renyi(cost, relation, order))
    renyi, width = refined(
        lambda width: max(renyi for renyi, _ in _sides(cost, relation, order, width)), [(cost, 1)]
    )
    return Price(renyi, max(d for _, d in _sides(cost, relation, order, width)))


def _price_of_search(cost: RoundCost, search: Search, relation: Relation, order: float) -> Price:
    """Return the price of the best of a random number of trials (Papernot and Steinke 2022, Thm 2).

    A trial has a Rényi divergence once its infinite losses are cut out. The cut moves the outcome
    of the search by the number of trials times the cut mass, for both neighbours. The bound uses
    two orders, each with its own cut.
    """
    if search.stopping == "poisson":
        raise ConfigError('stopping = "poisson": cannot share a ledger; take "geometric"')

    def trial(at: float) -> Price:
        each = [(price(part, relation, at), part.events(rounds)) for part, rounds in cost.trial]
        return Price(
            math.fsum(n * one.renyi for one, n in each),
            math.fsum(n * one.infinite for one, n in each),
        )

    log_gamma, log_trials = math.log(search.gamma), math.log(search.trials)
    more = min((1.0 - 1.0 / at) * trial(at).renyi - log_gamma / at for at in ORDERS)
    # Divergences grow with the order: the bound of a higher order also holds for this order.
    own = min(trial(at).renyi + log_trials / (at - 1.0) for at in {order, *ORDERS} if at >= order)
    infinite = max(trial(at).infinite for at in {order, *ORDERS})
    return Price(own + (search.shape + 1.0) * more, 4.0 * search.trials * infinite)


def _sides(
    cost: RoundCost, relation: Relation, order: float, width: float
) -> Sequence[tuple[float, float]]:
    """Return divergence and infinite mass in each direction, from the PLD on one grid."""
    composed = ComposedPld.of([(single_round(cost, relation, width), 1)], width)
    moments = [(side.parts[0].log_moments(order - 1.0)[0], side) for side in composed.directions]
    return [
        (max(0.0, (log_moment + _ROUNDING) / (order - 1.0)), side.infinite)
        for log_moment, side in moments
    ]

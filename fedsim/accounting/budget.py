"""Privacy budget: ε spent by a ledger, ε left, and the rounds that still fit."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from fedsim.accounting.accountants import epsilon_of_composition
from fedsim.accounting.events import RoundCost
from fedsim.accounting.ledger import Ledger
from fedsim.errors import ConfigError
from fedsim.sampling import Relation


@dataclass(frozen=True)
class Budget:
    """An (ε, δ) that all releases together must keep, by one accountant under one relation.

    Rounds need not cost the same: a run resumed with other settings, or rounds at another noise
    multiplier, are composed with what the ledger holds.

    Attributes:
        epsilon: the most that may be spent, > 0.
        delta: at which it is computed, in (0, 1).
        accountant: its name, or None for the mechanism's default.
        relation: the neighbouring relation, or None for the sampler's own.

    Raises:
        ConfigError: ε or δ is outside its range.

    Examples:
        >>> from fedsim.sampling import PoissonSampling
        >>> a_round = RoundCost(PoissonSampling(0.01), 1.0)
        >>> ledger = Ledger().charge(0, a_round, "seeded:1")
        >>> budget = Budget(epsilon=1.0, delta=1e-6)
        >>> round(budget.spent(ledger), 3)
        0.364
        >>> rounds = budget.affordable(ledger, a_round, at_most=10_000)
        >>> from fedsim.accounting.accountants import epsilon
        >>> epsilon(a_round, rounds + 1, 1e-6) <= 1.0 < epsilon(a_round, rounds + 2, 1e-6)
        True
    """

    epsilon: float
    delta: float
    accountant: str | None = None
    relation: Relation | None = None

    def __post_init__(self) -> None:
        if not self.epsilon > 0.0:
            raise ConfigError(f"epsilon = {self.epsilon!r}: give a number > 0")
        if not 0.0 < self.delta < 1.0:
            raise ConfigError(f"delta = {self.delta!r}: give a number in (0, 1)")

    def spent(self, ledger: Ledger) -> float:
        """Return ε of everything in the ledger."""
        return ledger.epsilon(self.delta, self.accountant, self.relation)

    def affordable(self, ledger: Ledger, cost: RoundCost, at_most: int) -> int:
        """Return how many further rounds of this cost fit, `at_most` at most.

        ε grows with every round, so it is computed once if all fit, else some log2(at_most)
        times.
        """
        if self._fits(ledger, cost, at_most):
            return at_most
        too_many = bisect_left(
            range(at_most), True, key=lambda rounds: not self._fits(ledger, cost, rounds)
        )
        return max(0, too_many - 1)  # 0 rounds may be too many: the ledger is overspent

    def _fits(self, ledger: Ledger, cost: RoundCost, rounds: int) -> bool:
        costs = [*ledger.costs, (cost, rounds)]
        total = epsilon_of_composition(costs, self.delta, self.accountant, self.relation)
        return total <= self.epsilon

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
    """An (ε, δ) limit on all releases together, by one accountant under one relation.

    Rounds may have different costs, for example in a run resumed with other settings. They are
    composed with the releases in the ledger.

    Attributes:
        epsilon: maximum ε, > 0.
        delta: δ of that ε, in (0, 1).
        accountant: name of the accountant; None for the mechanism's default.
        relation: neighbouring relation; None for the sampler's default.

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
        """Return how many more rounds of this cost fit, up to `at_most`.

        Computes ε once if all rounds fit, else about log2(at_most) times, as ε grows with rounds.
        """
        if self._fits(ledger, cost, at_most):
            return at_most
        too_many = bisect_left(
            range(at_most), True, key=lambda rounds: not self._fits(ledger, cost, rounds)
        )
        return max(0, too_many - 1)  # an overspent ledger has too_many = 0

    def _fits(self, ledger: Ledger, cost: RoundCost, rounds: int) -> bool:
        costs = [*ledger.costs, (cost, rounds)]
        total = epsilon_of_composition(costs, self.delta, self.accountant, self.relation)
        return total <= self.epsilon

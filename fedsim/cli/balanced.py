"""What `fedsim account balanced` answers: a price, beside that of Poisson sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fedsim.accounting import random_allocation
from fedsim.accounting.accountants import choose
from fedsim.accounting.accountants import epsilon as epsilon_of
from fedsim.accounting.events import RoundCost
from fedsim.accounting.random_allocation import ACCOUNTANT, RandomAllocation
from fedsim.accounting.rounding import round_up
from fedsim.accounting.statement import PrivacyTerms, finite_or_none
from fedsim.errors import ConfigError
from fedsim.sampling import PoissonSampling, Relation

_SCOPE = (
    "This is the price of a whole run whose number of rounds is fixed in advance: to stop early is "
    "no cheaper. No sampler of fedsim draws like this yet."
)


@dataclass(frozen=True)
class BalancedAnswer:
    """The (ε, δ) of an allocation at a noise multiplier, and ε of Poisson sampling beside it."""

    allocation: RandomAllocation
    noise_multiplier: float
    epsilon: float
    delta: float
    poisson: float
    poisson_accountant: str

    def to_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints; an infinite ε is null."""
        terms = self._terms.to_json()
        del terms["units_per_user"]
        return {
            "epsilon": finite_or_none(self.epsilon),
            **terms,
            "participations": self.allocation.participations,
            "guaranteed": self._terms.guaranteed,
            "whole_run": True,
            "poisson": {
                "epsilon": finite_or_none(self.poisson),
                "sampler": PoissonSampling(self.allocation.probability).of("users"),
                "accountant": self.poisson_accountant,
            },
        }

    def sentence(self) -> str:
        """Return the same in words, three lines."""
        poisson = (
            f"ε = {round_up(self.poisson, 4):g}" if math.isfinite(self.poisson) else "no finite ε"
        )
        return (
            f"{self._terms.sentence()}\n{_SCOPE}\n"
            f"Poisson sampling of users at the same rate, noise, rounds, δ and relation: {poisson} "
            f"by the {self.poisson_accountant} accountant."
        )

    @property
    def _terms(self) -> PrivacyTerms:
        return PrivacyTerms(
            epsilon=self.epsilon,
            delta=self.delta,
            relation=Relation.ADD_OR_REMOVE.phrase,
            sampler=self.allocation.of("users"),
            sampling_probability=self.allocation.probability,
            noise_multiplier=self.noise_multiplier,
            rounds=self.allocation.rounds,
            units_per_user=1,
            accountant=ACCOUNTANT,
            guaranteed=False,  # until a sampler draws it
        )


def balanced_answer(
    allocation: RandomAllocation, noise: float | None, target: float | None, delta: float
) -> BalancedAnswer:
    """Return ε of the noise, or noise and ε for a target.

    Raises:
        ConfigError: both or neither given, or one out of range.
    """
    if (noise is None) == (target is None):
        raise ConfigError(
            f"--noise-multiplier = {noise}, --epsilon = {target}: give one of the two; it decides "
            "the other"
        )
    if noise is None:
        noise = random_allocation.calibrate_noise_multiplier(
            allocation, epsilon=target or 0.0, delta=delta
        )
    spent = random_allocation.epsilon(allocation, noise, delta)
    similar = RoundCost(PoissonSampling(allocation.probability), noise)
    accountant, relation = choose([similar])
    poisson = epsilon_of(similar, allocation.rounds, delta, accountant.name, relation)
    return BalancedAnswer(allocation, noise, spent, delta, poisson, accountant.name)

"""The base class of accountants; `fedsim.accounting.accountants` loads them by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from fedsim.accounting.events import Composition, Profile, RoundCost
from fedsim.errors import ConfigError
from fedsim.sampling import Relation


@dataclass(frozen=True)
class Accountant(ABC):
    """A method that bounds ε or δ of composed rounds.

    A subclass is a frozen dataclass, registered under the entry-point group `fedsim.accountants`.
    Its fields besides `name` are its own keys in `[privacy]`. If it has any, its `options` is a
    subclass of `fedsim.PrivacyConfig` with the same fields.

    Formal guarantees:

    - For costs without a `refusal`, the mechanism of all rounds together is (`epsilon`, δ)-DP
      under the relation, and `profile` is never below its δ(ε).
    - The costs passed in are not empty; each has noise and at least one round.

    Attributes:
        name: name in configs and reports, with the values of its own keys.
    """

    name: str

    @classmethod
    def build(cls, name: str, **keys: Any) -> Accountant:  # noqa: ANN401  (its own)
        """Return the accountant with the values of its own keys."""
        return cls(name, **keys)

    @abstractmethod
    def refusal(self, cost: RoundCost, relation: Relation) -> str | None:
        """Return why this accountant cannot prove anything about a round, or None."""

    @abstractmethod
    def epsilon(self, costs: Composition, delta: float, relation: Relation) -> float:
        """Return the smallest ε certified at δ in (0, 1), or inf."""

    @abstractmethod
    def profile(self, costs: Composition, delta: float, relation: Relation) -> Profile:
        """Return δ (at most 1) as a function of ε; as exact near `delta` as `epsilon` is."""

    def renyi(self, cost: RoundCost, relation: Relation, order: float) -> tuple[float, float]:
        """Return the Rényi divergence of a cost's event, and the probability that it leaves out.

        Raises:
            ConfigError: there is no divergence; privacy filters and shared ledgers refuse the run.
        """
        raise ConfigError(f"accountant = {self.name!r}: has no Rényi divergence for a filter")

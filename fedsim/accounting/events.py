"""Round costs: the mechanism of a round as a value, and its `DpEvent`.

A round with user-level sampling is a Poisson-sampled Gaussian mechanism (Charles et al. 2024,
Theorem 2). With example-level sampling a user has up to K examples, each drawn by its own coin. One
user then moves the sum by a Binomial(K, p) number of clip norms, so the round is a mixture of
Gaussians (Theorems 1 and 3). Other samplers define their own events.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dp_accounting
import numpy as np
import numpy.typing as npt
from dp_accounting import dp_event

from fedsim.accounting.search import Search
from fedsim.errors import about
from fedsim.registry import resolve
from fedsim.sampling import PoissonSampling, Sampling

_MOST_UNITS = 10**7  # limit on a user's units: one probability is computed for each count


@dataclass(frozen=True)
class RoundCost:
    """The parts of a round that determine its privacy cost.

    Attributes:
        sampling: the sampler of units (users in ULS, examples in ELS).
        noise_multiplier: standard deviation of the noise divided by the bound of one unit,
            finite and >= 0; 0 is a release without privacy.
        units_per_user: maximum number of units of one user: 1 in ULS, the group size in ELS.
        search: the search that the round's run belongs to, if any; the cost is then that of the
            whole search.

    Raises:
        ValueError: a field is outside its range, or the combination has no proof.

    Examples:
        >>> from fedsim.sampling import PoissonSampling
        >>> type(RoundCost(PoissonSampling(0.01), 1.0).event).__name__
        'PoissonSampledDpEvent'
        >>> type(RoundCost(PoissonSampling(0.01), 1.0, units_per_user=8).event).__name__
        'MixtureOfGaussiansDpEvent'
        >>> RoundCost(PoissonSampling(0.01), -1.0)
        Traceback (most recent call last):
            ...
        ValueError: noise_multiplier = -1.0: give a finite number >= 0
    """

    sampling: Sampling
    noise_multiplier: float
    units_per_user: int = 1
    search: Search | None = None

    def __post_init__(self) -> None:
        if not (self.noise_multiplier >= 0.0 and math.isfinite(self.noise_multiplier)):
            raise ValueError(
                f"noise_multiplier = {self.noise_multiplier!r}: give a finite number >= 0"
            )
        if type(self.units_per_user) is not int or not 1 <= self.units_per_user <= _MOST_UNITS:
            raise ValueError(
                f"units_per_user = {self.units_per_user!r}: give an integer >= 1, and at most "
                f"{_MOST_UNITS:,}"
            )
        whole = self.sampling.run_rounds
        if self.search is not None and whole not in (None, self.search.rounds):
            raise ValueError(f"search.rounds = {self.search.rounds}: a run has {whole}")
        if self.noise_multiplier > 0.0:
            self.sampling.event(self.noise_multiplier, min(self.units_per_user, 2))

    @property
    def run_rounds(self) -> int | None:
        """Number of rounds that share one price; None if each round has its own."""
        return self.sampling.run_rounds if self.search is None else self.search.rounds

    @property
    def trial(self) -> Composition:
        """The releases of one trial of the search: its rounds and its private score."""
        if self.search is None:
            raise ValueError("search: None")
        one = dataclasses.replace(self, search=None)
        score = RoundCost(PoissonSampling(1.0), self.search.score_noise_multiplier)
        return [(one, self.search.rounds), (score, 1)]

    def coins(self, rounds: int) -> tuple[float, int]:
        """Return the rate of a unit's coins and their number in `rounds` rounds."""
        if self.search is not None:
            rounds = self.runs(rounds) * self.search.rounds
        return self.sampling.coins_met(rounds)

    @property
    def event(self) -> dp_accounting.DpEvent:
        """The event of one round at user level; `events` gives how often it is composed."""
        if self.noise_multiplier == 0.0:
            return dp_accounting.NonPrivateDpEvent()
        if self.search is not None:
            parts = [cost.composed(rounds) for cost, rounds in self.trial]
            return dp_event.RepeatAndSelectDpEvent(
                dp_accounting.ComposedDpEvent(parts), self.search.trials, self.search.shape
            )
        return self.sampling.event(self.noise_multiplier, self.units_per_user)

    @property
    def kind_of_event(self) -> type[dp_accounting.DpEvent]:
        """The class of the sampler's event, found without computing all of its numbers."""
        return type(self.sampling.event(self.noise_multiplier or 1.0, min(self.units_per_user, 2)))

    def runs(self, rounds: int) -> int:
        """Return how many prices these rounds cost: one per round, or one per run started."""
        whole = self.run_rounds
        return rounds if whole is None else -(-rounds // whole)

    def events(self, rounds: int) -> int:
        """Return how often `event` is composed for these rounds."""
        return self.runs(rounds) * (self.sampling.events if self.search is None else 1)

    def composed(self, rounds: int) -> dp_accounting.DpEvent:
        """Return the event of `rounds` such rounds; `NoOpDpEvent` for 0 rounds.

        Raises:
            ValueError: `rounds` is negative.
        """
        if rounds < 0:
            raise ValueError(f"rounds = {rounds!r}: give an integer >= 0")
        if rounds == 0:
            return dp_accounting.NoOpDpEvent()
        return dp_accounting.SelfComposedDpEvent(self.event, self.events(rounds))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        numbers = dataclasses.asdict(self.sampling)  # type: ignore[call-overload]
        fields = {name: value for name, value in numbers.items() if value is not None}
        selected = self.search and {"search": dataclasses.asdict(self.search)}
        return {
            **(selected or {}),
            "sampling": {"kind": self.sampling.kind, **fields},
            "noise_multiplier": self.noise_multiplier,
            "units_per_user": self.units_per_user,
        }

    @classmethod
    def from_json(cls, data: Any) -> RoundCost:  # noqa: ANN401  (any JSON value)
        """Return the cost for a value of `to_json`.

        Raises:
            ConfigError: a field is missing, unknown or out of range.
        """
        wrong = (ValueError, TypeError, KeyError, AttributeError, OverflowError)
        with about(f"round cost = {data!r}: ", wrong):
            fields = dict(data)
            sampling = dict(fields.pop("sampling"))
            search = fields.pop("search", None)
            kind = resolve("samplers", sampling.pop("kind"), "round cost: sampling.kind")
            return cls(kind(**sampling), **fields, search=search and Search(**search))


Composition = Sequence[tuple[RoundCost, int]]
"""Pairs of a cost and its number of rounds."""

Profile = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
"""Maps ε >= 0, (n,) ascending, to upper bounds on δ, (n,), for both directions."""


def merged(costs: Composition) -> tuple[tuple[RoundCost, int], ...]:
    """Return each cost once with its total rounds, in order of first appearance; omit 0 rounds."""
    counts: Counter[RoundCost] = Counter()
    for cost, rounds in costs:
        counts[cost] += rounds
    return tuple((cost, rounds) for cost, rounds in counts.items() if rounds)

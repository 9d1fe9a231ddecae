"""Round costs: the mechanism of a round as a value, and its `DpEvent`.

A round with user-level sampling is a Poisson-sampled Gaussian mechanism (Charles et al. 2024,
Theorem 2). With example-level sampling a user is present through up to K examples, each drawn
by its own coin: one user moves the sum by a Binomial(K, p) number of clip norms, and the round
is a mixture of Gaussians (Theorems 1 and 3). Other samplers bring events of their own.
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

_MOST_UNITS = 10**7  # of a user: of each number of them a probability is computed


@dataclass(frozen=True)
class RoundCost:
    """The mechanism of one round, as far as its privacy depends on it.

    Attributes:
        sampling: the sampler of units (users in ULS, examples in ELS).
        noise_multiplier: standard deviation of the noise divided by what one unit can add,
            finite and >= 0; 0 is a release without privacy.
        units_per_user: how many units one user owns at most: 1 in ULS, the group size in ELS.
        search: of which the round's run is a trial: then the price is that of the whole search.

    Raises:
        ValueError: a field is outside its range, or no proof covers this combination.

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
        """The rounds of a run, where a whole run has one price; None where each round has one."""
        return self.sampling.run_rounds if self.search is None else self.search.rounds

    @property
    def trial(self) -> Composition:
        """What one trial of the search releases: its rounds, and its private score."""
        if self.search is None:
            raise ValueError("search: None")
        one = dataclasses.replace(self, search=None)
        score = RoundCost(PoissonSampling(1.0), self.search.score_noise_multiplier)
        return [(one, self.search.rounds), (score, 1)]

    def coins(self, rounds: int) -> tuple[float, int]:
        """Return the rate and the number of the coins that a unit meets in these rounds."""
        if self.search is not None:
            rounds = self.runs(rounds) * self.search.rounds
        return self.sampling.coins_met(rounds)

    @property
    def event(self) -> dp_accounting.DpEvent:
        """The event of one round at user level, or the part of a run's: see `events`."""
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
        """The class of the sampler's event: without the numbers, which can be many."""
        return type(self.sampling.event(self.noise_multiplier or 1.0, min(self.units_per_user, 2)))

    def runs(self, rounds: int) -> int:
        """Return how many prices these rounds have: rounds, or whole runs that were begun."""
        whole = self.run_rounds
        return rounds if whole is None else -(-rounds // whole)

    def events(self, rounds: int) -> int:
        """Return how many times `event` these rounds cost."""
        return self.runs(rounds) * (self.sampling.events if self.search is None else 1)

    def composed(self, rounds: int) -> dp_accounting.DpEvent:
        """Return the event of `rounds` such rounds; of none, the event that costs nothing.

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
        """Read what `to_json` wrote.

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
"""Rounds that need not cost the same: each cost with its number of rounds."""

Profile = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
"""Upper bounds on δ, (n,), in both directions, at each ε >= 0, (n,) ascending."""


def merged(costs: Composition) -> tuple[tuple[RoundCost, int], ...]:
    """Return each cost once, with all its rounds, in order of first appearance; none with 0."""
    counts: Counter[RoundCost] = Counter()
    for cost, rounds in costs:
        counts[cost] += rounds
    return tuple((cost, rounds) for cost, rounds in counts.items() if rounds)

"""What one round costs a user, as a value, and the `DpEvent` it stands for.

A round with user-level sampling is a Poisson-sampled Gaussian mechanism (Charles et al. 2024,
Theorem 2). With example-level sampling a user is present through up to K examples, each drawn
by its own coin: one user moves the sum by a Binomial(K, p) number of clip norms, and the round
is a mixture of Gaussians (Theorems 1 and 3).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import dp_accounting
import numpy as np
from scipy import stats

from fedsim.errors import ConfigError


@dataclass(frozen=True)
class RoundCost:
    """The mechanism of one round, as far as its privacy depends on it.

    Attributes:
        sampling_probability: of a unit's coin (a user in ULS, an example in ELS), in (0, 1].
        noise_multiplier: standard deviation of the noise divided by the sensitivity to one
            unit, finite and >= 0; 0 is a release without privacy.
        units_per_user: how many units one user owns at most: 1 in ULS, the group size in ELS.

    Raises:
        ValueError: a field is outside its range.
    """

    sampling_probability: float
    noise_multiplier: float
    units_per_user: int = 1

    def __post_init__(self) -> None:
        if not 0.0 < self.sampling_probability <= 1.0:
            raise ValueError(
                f"sampling_probability = {self.sampling_probability!r}: give a number in (0, 1]"
            )
        if not (self.noise_multiplier >= 0.0 and math.isfinite(self.noise_multiplier)):
            raise ValueError(
                f"noise_multiplier = {self.noise_multiplier!r}: give a finite number >= 0"
            )
        if not isinstance(self.units_per_user, int) or self.units_per_user < 1:
            raise ValueError(f"units_per_user = {self.units_per_user!r}: give an integer >= 1")

    @property
    def event(self) -> dp_accounting.DpEvent:
        """The event of one round at user level, add-or-remove-one user."""
        if self.noise_multiplier == 0.0:
            return dp_accounting.NonPrivateDpEvent()
        if self.units_per_user == 1:
            return dp_accounting.PoissonSampledDpEvent(
                self.sampling_probability, dp_accounting.GaussianDpEvent(self.noise_multiplier)
            )
        return dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
            self.noise_multiplier,
            list(range(self.units_per_user + 1)),
            binomial_probabilities(self.units_per_user, self.sampling_probability),
        )

    def composed(self, rounds: int) -> dp_accounting.DpEvent:
        """Return the event of `rounds` such rounds; of none, the event that costs nothing.

        Raises:
            ValueError: `rounds` is negative.
        """
        if rounds < 0:
            raise ValueError(f"rounds = {rounds!r}: give an integer >= 0")
        if rounds == 0:
            return dp_accounting.NoOpDpEvent()
        return dp_accounting.SelfComposedDpEvent(self.event, rounds)

    def to_json(self) -> dict[str, float | int]:
        """Return the fields as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: object) -> RoundCost:
        """Read what `to_json` wrote.

        Raises:
            ConfigError: not a mapping with exactly the three fields, or a value out of range.
        """
        if not isinstance(data, Mapping):
            raise ConfigError(f"round cost = {data!r}: expected an object")
        fields = [field.name for field in dataclasses.fields(cls)]
        if sorted(data) != sorted(fields):
            raise ConfigError(f"round cost has keys {sorted(data)}: expected {sorted(fields)}")
        for name in fields:
            if isinstance(data[name], bool) or not isinstance(data[name], int | float):
                raise ConfigError(f"round cost: {name} = {data[name]!r}: expected a number")
        try:
            return cls(**data)
        except ValueError as error:
            raise ConfigError(f"round cost: {error}") from None


def binomial_probabilities(trials: int, probability: float) -> list[float]:
    """Return P(Binomial(trials, probability) = i) for i = 0 … trials, summing to 1.

    What matters is *relative* accuracy in the upper tail: a term of 1e-60 is multiplied by a
    likelihood ratio that can be as large as it is small. scipy's pmf has it (better than 1e-12
    for thousands of trials); powers and binomial coefficients in floats overflow. Each term is
    rounded, so the sum misses 1 by a few units in the last place. Dividing by it matters:
    mass that is missing from one side of the pair is a sub-distribution, whose divergence the
    accountant would read as too small.
    """
    pmf = stats.binom.pmf(np.arange(trials + 1), trials, probability)
    return [float(value) for value in pmf / math.fsum(pmf)]

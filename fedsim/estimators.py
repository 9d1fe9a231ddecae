"""Estimators: from a cohort's weighted sum to its mean, and the sensitivity of that mean.

Only an estimator chooses a denominator, and only its `.sensitivity(bound)` sets the noise scale
(McMahan et al. 2018, §2 and Lemma 1). To add an estimator, register a subclass of `Estimator` under
the entry-point group `fedsim.estimators` (`docs/how-to/own-parts.md`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch

from fedsim.config.schema import EstimatorConfig
from fedsim.noise.gaussian import release_
from fedsim.noise.memory import NoiseMemory
from fedsim.release import Release
from fedsim.sampling import Relation, Sampling
from fedsim.seeding import NoiseKey
from fedsim.tensors import Tensors, add, block_of_zeros, fold_, zeros_like
from fedsim.utils.section import Positive

# Maximum entries of a sum in one block of memory. A larger sum has one block per tensor, so that
# each can be freed alone; many small blocks are slow to fill on a machine with many cores.
_SMALL = 2**24


@dataclass(frozen=True, eq=False)
class WeightedSum:
    """Σ w·clip(update) over some units, with counts for checks and logs.

    A monoid: `zero` is neutral and `+` is associative (up to 1e-15, in float64). So a cohort can be
    split into any shards, in any processes.

    Attributes:
        values: the weighted sum, float64.
        weight: Σ w, each w in [0, 1].
        num_units: number of added units, including those replaced by zero.
        num_non_finite: units with a NaN or an infinity, replaced by zero.
        num_unclipped: units that the clip left unchanged, including zeros (private).
        num_gradients: number of per-example gradients computed.
        loss: Σ of the units' mean training losses (private: for the log, not for release).

    Examples:
        >>> one = WeightedSum({"w": torch.tensor([1.0, 2.0])}, weight=1.0, num_units=1)
        >>> two = one + one + WeightedSum.zero(one.values)
        >>> two.values["w"].tolist(), two.weight, two.num_units
        ([2.0, 4.0], 2.0, 2)
    """

    values: Tensors
    weight: float = 0.0
    num_units: int = 0
    num_non_finite: int = 0
    num_gradients: int = 0
    loss: float = 0.0
    num_unclipped: int = 0

    @classmethod
    def zero(cls, layout: Tensors) -> WeightedSum:
        """Return the sum over no units."""
        small = 0 < sum(value.numel() for value in layout.values()) <= _SMALL
        return cls((block_of_zeros if small else zeros_like)(layout, torch.float64))

    def __add__(self, other: WeightedSum) -> WeightedSum:
        return self._with(add(self.values, other.values), other)

    def absorb_(self, others: Sequence[WeightedSum]) -> tuple[WeightedSum, list[float]]:
        """Return self + others, and the L2 norm of the values of each other sum.

        Overwrites the tensors of self, so that adding sums of a large model allocates no memory.
        Do not use self afterwards.
        """
        norms = fold_(self.values, [other.values for other in others])
        total = self
        for other in others:
            total = total._with(self.values, other)
        return total, norms

    def release_(
        self, factor: float, stddev: float, noise: NoiseKey, earlier: NoiseMemory | None = None
    ) -> Release:
        """Return factor * values with noise, in the memory of the values: `noise.gaussian`."""
        return Release(*release_(self.values, factor, stddev, noise, earlier))

    def _with(self, values: Tensors, other: WeightedSum) -> WeightedSum:
        counted = [field.name for field in fields(self) if field.name != "values"]
        added = {name: getattr(self, name) + getattr(other, name) for name in counted}
        return WeightedSum(values=values, **added)


class Estimator(ABC):
    """A denominator and the sensitivity of the resulting mean.

    A subclass is a frozen dataclass. Its entry point in `fedsim.estimators` is named `kind`.

    The ε relies on these formal guarantees:

    - Take one unit with a weight in [0, 1] and a clipped update of norm at most `bound`. Adding or
      removing it moves `factor(total)` times the sum by at most `sensitivity(bound)` in L2. This
      holds for every sampler, relation and `units_per_user` for which `unproved` returns None.
    - `sensitivity` uses public numbers only.
    - `sampling_probability` equals the sampler's probability.
    """

    kind: str
    options: ClassVar[type[EstimatorConfig]] = EstimatorConfig
    sampling_probability: float

    @classmethod
    def build(cls, options: Any, probability: float, population: float) -> Estimator:  # noqa: ANN401
        """Return the estimator of a config.

        Args:
            options: the table `strategy.estimator`, an instance of `cls.options`.
            probability: the sampler's probability of a unit in a round.
            population: public total weight of all units.
        """
        raise NotImplementedError

    @abstractmethod
    def factor(self, total: WeightedSum) -> float:
        """Return the factor that turns the sum into the estimate of the mean update."""

    @abstractmethod
    def sensitivity(self, bound: float) -> float:
        """Return the maximum L2 change of the estimate if one unit of weight <= 1 comes or goes."""

    def unproved(self, sampling: Sampling, relation: Relation, units_per_user: int) -> str | None:
        """Return which of the arguments the proof of the sensitivity does not cover, or None."""
        return None

    def describe(self) -> dict[str, float | str]:
        """Return settings for the report."""
        return {"kind": self.kind}


class ClippedConfig(EstimatorConfig):
    """Divide by the weight of the drawn cohort, but at least by a fixed weight."""

    min_weight: Positive
    """The denominator is max(q * min_weight, the drawn weight), where q is the sampling
    probability."""


def _check(sampling_probability: float, weight: float, field_name: str) -> None:
    if not 0.0 < sampling_probability <= 1.0:
        raise ValueError(f"sampling_probability = {sampling_probability}: must be in (0, 1]")
    if not 0.0 < weight < float("inf"):
        raise ValueError(f"{field_name} = {weight}: must be positive and finite")


@dataclass(frozen=True)
class FixedDenominator(Estimator):
    """f_f: divide by the expected weight q·W of a cohort. Unbiased; sensitivity S/(qW).

    Attributes:
        sampling_probability: q.
        total_weight: W, the declared sum of all units' weights, a public number.

    Examples:
        >>> mean = FixedDenominator(sampling_probability=0.01, total_weight=1000.0)
        >>> mean.factor(WeightedSum({"w": torch.tensor([20.0])}, weight=17.0))
        0.1
        >>> mean.sensitivity(bound=0.5)
        0.05
    """

    sampling_probability: float
    total_weight: float
    kind: str = field(default="fixed", init=False)

    def __post_init__(self) -> None:
        _check(self.sampling_probability, self.total_weight, "total_weight")

    @classmethod
    def build(cls, options: EstimatorConfig, probability: float, population: float) -> Estimator:
        """Return the expected weight of a cohort as the denominator."""
        return cls(probability, population)

    @property
    def denominator(self) -> float:
        """q·W."""
        return self.sampling_probability * self.total_weight

    def factor(self, total: WeightedSum) -> float:
        """Return 1 / (qW)."""
        return 1.0 / self.denominator

    def sensitivity(self, bound: float) -> float:
        """Return bound / (qW)."""
        return bound / self.denominator

    def describe(self) -> dict[str, float | str]:
        """Return the kind and the denominator."""
        return {"kind": self.kind, "denominator": self.denominator}


@dataclass(frozen=True)
class ClippedDenominator(Estimator):
    """f_c: divide by max(q·W_min, drawn weight). Sensitivity 2S/(qW_min), Lemma 1.

    The factor 2 pays for the denominator, which a unit moves too. The proof needs clipped updates,
    ‖Δ‖ ≤ S, with weights w in [0, 1]; a bound on w·Δ alone is not enough.

    Attributes:
        sampling_probability: q.
        min_weight: W_min, a public lower bound on the total weight in the denominator.

    Examples:
        >>> mean = ClippedDenominator(sampling_probability=0.01, min_weight=1000.0)
        >>> mean.factor(WeightedSum({"w": torch.tensor([20.0])}, weight=16.0))
        0.0625
        >>> mean.factor(WeightedSum({"w": torch.tensor([20.0])}, weight=2.0))
        0.1
        >>> mean.sensitivity(bound=0.5)
        0.1
    """

    sampling_probability: float
    min_weight: float
    kind: str = field(default="clipped", init=False)
    options: ClassVar[type[EstimatorConfig]] = ClippedConfig

    def __post_init__(self) -> None:
        _check(self.sampling_probability, self.min_weight, "min_weight")

    @classmethod
    def build(cls, options: ClippedConfig, probability: float, population: float) -> Estimator:
        """Return the estimator with the minimum weight in the options."""
        return cls(probability, options.min_weight)

    @property
    def least_denominator(self) -> float:
        """q·W_min."""
        return self.sampling_probability * self.min_weight

    def factor(self, total: WeightedSum) -> float:
        """Return 1 / max(qW_min, Σ w)."""
        return 1.0 / max(self.least_denominator, total.weight)

    def sensitivity(self, bound: float) -> float:
        """Return 2·bound / (qW_min)."""
        return 2.0 * bound / self.least_denominator

    def unproved(self, sampling: Sampling, relation: Relation, units_per_user: int) -> str | None:
        """Return which argument Lemma 1 of McMahan et al. 2018 does not cover: it adds one unit."""
        if units_per_user > 1:
            return "a user with several units in the pool"
        if relation is Relation.REPLACE:
            return "the replace-one relation"
        if relation is not Relation.ADD_OR_REMOVE:  # a zero update still moves the denominator
            return f"the {relation.value} relation, where a user who contributes zeros still counts"
        if sampling.displaces:
            return "a cohort in which one user can displace another"
        return None

    def describe(self) -> dict[str, float | str]:
        """Return the kind and the minimum denominator."""
        return {"kind": self.kind, "least_denominator": self.least_denominator}

"""Estimators: from a cohort's weighted sum to its mean, and the sensitivity of that mean.

An estimator is the only place where a denominator is chosen, and its `.sensitivity(bound)` the
only source of the noise scale (McMahan et al. 2018, §2 and Lemma 1). A new one is a subclass of
`Estimator` under an entry point of the group `fedsim.estimators`: `docs/how-to/own-parts.md`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch

from fedsim.config.schema import EstimatorConfig
from fedsim.sampling import Relation, Sampling
from fedsim.tensors import Tensors, add, block_of_zeros, fold_, zeros_like
from fedsim.utils.section import Positive

# Entries of a sum in one piece of memory. In one of a large model, a tensor that is used up would
# not be freed; and many small ones take long to fill on a machine of many cores.
_SMALL = 2**24


@dataclass(frozen=True, eq=False)
class WeightedSum:
    """Σ w·clip(update) over some units, with what the server must check and may report.

    A monoid: `zero` is neutral and `+` associative (values are float64, so up to 1e-15), which
    is why a cohort can be computed in any shards, in any process.

    Attributes:
        values: the weighted sum, float64.
        weight: Σ w, each w in [0, 1].
        num_units: how many units were added, those that were dropped to zero included.
        num_non_finite: how many of them had a NaN or an infinity and counted as zero.
        num_unclipped: how many of them the clip left as they were, zeros included (private).
        num_gradients: per-example gradients computed.
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
        """Return self + others, and the L2 norm of each of the others' values.

        It is written into the tensors of self, which is used up by it: for folding sums of a large
        model without fresh memory for each.
        """
        norms = fold_(self.values, [other.values for other in others])
        total = self
        for other in others:
            total = total._with(self.values, other)
        return total, norms

    def _with(self, values: Tensors, other: WeightedSum) -> WeightedSum:
        counted = [field.name for field in fields(self) if field.name != "values"]
        added = {name: getattr(self, name) + getattr(other, name) for name in counted}
        return WeightedSum(values=values, **added)


class Estimator(ABC):
    """A denominator, and the sensitivity that goes with it.

    A subclass is a frozen dataclass. Its entry point in `fedsim.estimators` has the name `kind`.

    Formal guarantees, which the ε rests on:

    - `factor(total)` times the sum moves by at most `sensitivity(bound)` in L2 where one unit of
      weight in [0, 1], whose clipped update has a norm of at most `bound`, comes in or leaves, for
      every sampler, relation and number of units a user that `unproved` does not name.
    - `sensitivity` is made of public numbers alone.
    - `sampling_probability` is the sampler's.
    """

    kind: str
    options: ClassVar[type[EstimatorConfig]] = EstimatorConfig
    sampling_probability: float

    @classmethod
    def build(cls, options: Any, probability: float, population: float) -> Estimator:  # noqa: ANN401
        """Return the estimator of a config.

        Args:
            options: the table `strategy.estimator`, an instance of `cls.options`.
            probability: of the sampler.
            population: the public total weight of all units.
        """
        raise NotImplementedError

    @abstractmethod
    def factor(self, total: WeightedSum) -> float:
        """Return what the sum's values are multiplied by to be the estimate of the mean update."""

    @abstractmethod
    def sensitivity(self, bound: float) -> float:
        """Return the most, in L2, that adding or removing one unit of weight <= 1 can change."""

    def unproved(self, sampling: Sampling, relation: Relation, units_per_user: int) -> str | None:
        """Return what its proof of the sensitivity does not cover, or None."""
        return None

    def describe(self) -> dict[str, float | str]:
        """Return what a report prints."""
        return {"kind": self.kind}


class ClippedConfig(EstimatorConfig):
    """The weight of the drawn cohort, from below at a least weight."""

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
    """f_f: divide by the expected weight q·W, whatever was drawn. Unbiased; sensitivity S/(qW).

    Attributes:
        sampling_probability: q.
        total_weight: W, the declared sum of all units' weights: a public number.

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
    """f_c: divide by max(q·W_min, the weight drawn). Sensitivity 2S/(qW_min), Lemma 1.

    The factor 2 pays for the denominator, which a unit moves as well. The proof needs updates
    that are clipped, not only weighted updates: ‖Δ‖ ≤ S and w in [0, 1].

    Attributes:
        sampling_probability: q.
        min_weight: W_min, the least total weight that is provided for: a public number.

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
        """Return the denominator of the least weight in the options."""
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
        """Return what Lemma 1 of McMahan et al. 2018, which adds one unit once, does not cover."""
        if units_per_user > 1:
            return "a user with several units in the pool"
        if relation is Relation.REPLACE:
            return "the replace-one relation"
        if relation is not Relation.ADD_OR_REMOVE:  # it moves the mean towards 0 too
            return f"the {relation.value} relation, where who contributes zeros still counts"
        if sampling.displaces:
            return "a cohort in which one user can displace another"
        return None

    def describe(self) -> dict[str, float | str]:
        """Return the kind and the least denominator."""
        return {"kind": self.kind, "least_denominator": self.least_denominator}

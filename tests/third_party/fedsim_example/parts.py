"""A sampler, clip, estimator, accountant and server optimizer, each with a key of its own.

An ε rests on the claims of the docstrings: fedsim names these parts in its statements.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import dp_accounting
import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from fedsim import (
    Accountant,
    Clip,
    ClipConfig,
    Coins,
    Estimator,
    EstimatorConfig,
    PoissonSampling,
    PrivacyConfig,
    Relation,
    RoundCost,
    Sampling,
    SamplingConfig,
    ServerConfig,
    ServerOptimizer,
    Wanted,
    WeightedSum,
)

Share = Annotated[float, Field(gt=0.0, le=1.0)]


class GrowingConfig(SamplingConfig):
    """Cohorts that grow."""

    first_share: Share = 0.5
    """The first cohort's expected size over the last one's."""


@dataclass(frozen=True)
class Growing(Sampling):
    """Coins whose rate grows evenly from `first_share * rate` to `rate` over the run.

    A run of T rounds is T Poisson-sampled Gaussian mechanisms, each of its own rate; they compose.
    """

    rate: float
    first_share: float
    rounds: int
    kind: ClassVar[str] = "example-growing"
    options: ClassVar[type[SamplingConfig]] = GrowingConfig
    accountant: ClassVar[str | None] = "example-orders"

    @classmethod
    def build(cls, options: GrowingConfig, wanted: Wanted) -> Growing:
        """Return coins whose last rate gives the expected number of units."""
        return cls(wanted.rate, options.first_share, wanted.rounds)

    @property
    def run_rounds(self) -> int:
        """All rounds: the event is of the whole run."""
        return self.rounds

    @property
    def probability(self) -> float:  # type: ignore[override]
        """The last and largest rate; the denominator is of it."""
        return self.rate

    def rate_of(self, round: int) -> float:
        """Return the rate of a round."""
        part = round / max(1, self.rounds - 1)
        return self.rate * (self.first_share + (1.0 - self.first_share) * part)

    def draw(self, num_units: int, round: int, coins: Coins) -> npt.NDArray[np.int64]:
        """Return the units whose coin fell."""
        return PoissonSampling(self.rate_of(round)).draw(num_units, round, coins)

    def event(self, noise_multiplier: float, units_per_user: int) -> dp_accounting.DpEvent:
        """Return the composition of all rounds."""
        if units_per_user > 1:
            raise ValueError(f"{self.kind}: no proof for {units_per_user} units a user")
        rates = map(self.rate_of, range(self.rounds))
        gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
        return dp_accounting.ComposedDpEvent(
            [dp_accounting.PoissonSampledDpEvent(rate, gaussian) for rate in rates]
        )


class SmoothConfig(ClipConfig):
    """A clip without a corner."""

    power: Annotated[float, Field(ge=1.0)] = 2.0
    """How sharp the corner is; the flat clip is the limit."""


class Smooth(Clip):
    """Scale an update of norm n by S / (n^p + S^p)^(1/p): what comes out is shorter than S."""

    options: ClassVar[type[ClipConfig]] = SmoothConfig
    kind: Literal["example-smooth"] = "example-smooth"
    l2_clip_norm: float
    power: float

    @classmethod
    def build(cls, options: SmoothConfig, parameters: Mapping[str, torch.Tensor]) -> Smooth:
        """Return the clip of the norm and the power in the options."""
        return cls(l2_clip_norm=options.l2_clip_norm or 1.0, power=options.power)

    @property
    def bound(self) -> float:
        """S."""
        return self.l2_clip_norm

    def scaled(self, scale: float) -> Smooth:
        """Return the clip of `scale` times S."""
        return Smooth(l2_clip_norm=scale * self.l2_clip_norm, power=self.power)

    def batch_factors(
        self, names: Sequence[str], squares: torch.Tensor, *, norm_error: float = 0.0
    ) -> torch.Tensor:
        """Return one factor for all tensors of an update, with the largest that the norm may be."""
        norms = squares.sum(dim=1, keepdim=True).sqrt() / (1.0 - norm_error) / self.l2_clip_norm
        factors = (1.0 + norms**self.power) ** (-1.0 / self.power)
        return (factors * (1.0 - 1e-9)).expand(squares.shape)


class CautiousConfig(EstimatorConfig):
    """A larger denominator."""

    caution: Annotated[float, Field(ge=1.0)] = 1.0
    """How many times the expected weight it is."""


@dataclass(frozen=True)
class Cautious(Estimator):
    """Divide by c q W, a constant: one unit of norm S moves the estimate by S / (c q W)."""

    sampling_probability: float
    total_weight: float
    caution: float
    kind: str = field(default="example-cautious", init=False)
    options: ClassVar[type[EstimatorConfig]] = CautiousConfig

    @classmethod
    def build(cls, options: CautiousConfig, probability: float, population: float) -> Cautious:
        """Return the denominator of a population."""
        return cls(probability, population, options.caution)

    def factor(self, total: WeightedSum) -> float:
        """Return 1 / (c q W)."""
        return 1.0 / (self.caution * self.sampling_probability * self.total_weight)

    def sensitivity(self, bound: float) -> float:
        """Return bound / (c q W)."""
        return bound / (self.caution * self.sampling_probability * self.total_weight)


class OrdersConfig(PrivacyConfig):
    """Keys of `example-orders`."""

    num_orders: Annotated[int, Field(ge=1)] = 100
    """How many Rényi orders are tried."""


@dataclass(frozen=True)
class Orders(Accountant):
    """The Rényi accountant of dp_accounting, at orders 2, 3, 4, …; it holds at each of them."""

    num_orders: int = 100
    options: ClassVar[type[PrivacyConfig]] = OrdersConfig

    def refusal(self, cost: RoundCost, relation: Relation) -> str | None:
        """Return why it proves nothing about a round, or None."""
        if relation is Relation.REPLACE or cost.sampling.kind != Growing.kind:
            return "accounts growing cohorts under add-or-remove-one or zero-out-one"
        return None

    def epsilon(
        self, costs: Sequence[tuple[RoundCost, int]], delta: float, relation: Relation
    ) -> float:
        """Return ε at δ."""
        return float(_composed(self.num_orders, tuple(costs)).get_epsilon(delta))

    def profile(
        self, costs: Sequence[tuple[RoundCost, int]], delta: float, relation: Relation
    ) -> Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]:
        """Return δ as a function of ε."""
        composed = _composed(self.num_orders, tuple(costs))
        return lambda epsilons: np.array([composed.get_delta(one) for one in epsilons.tolist()])


@functools.lru_cache  # a trade-off curve asks for δ at many ε
def _composed(
    num_orders: int, costs: tuple[tuple[RoundCost, int], ...]
) -> dp_accounting.rdp.RdpAccountant:
    accountant = dp_accounting.rdp.RdpAccountant(range(2, 2 + num_orders))
    for cost, rounds in costs:
        accountant.compose(cost.composed(rounds))
    return accountant


class MomentumConfig(ServerConfig):
    """SGD with momentum."""

    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """Momentum of the server's steps."""


@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """torch's SGD with momentum."""

    momentum: float = 0.9
    options: ClassVar[type[ServerConfig]] = MomentumConfig

    @classmethod
    def build(cls, options: MomentumConfig) -> Momentum:  # type: ignore[override]
        """Return the optimizer of a config."""
        rate, norm = options.learning_rate or 1.0, options.max_gradient_norm
        return cls(options.optimizer, rate, norm, options.momentum)

    def torch_optimizer(self, values: list[torch.Tensor]) -> torch.optim.Optimizer:
        """Return a new SGD."""
        return torch.optim.SGD(values, lr=self.learning_rate, momentum=self.momentum)

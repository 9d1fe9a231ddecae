"""The Asi & Liu filter (2024; Chua et al. 2024, Algorithm 3): noise by concentration, or a halt."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from fedsim.accounting.above_threshold import failure_probability
from fedsim.accounting.relations import Relation
from fedsim.clipping import Clip
from fedsim.concentrated import AboveThreshold, ConcentratedSampling, halting_test
from fedsim.config import Config
from fedsim.errors import ConfigError, HaltedError
from fedsim.estimators import WeightedSum
from fedsim.execution import Executor, Keys
from fedsim.materials import Materials
from fedsim.plan import RoundPlan
from fedsim.seeding import stream
from fedsim.tensors import Tensors, scale
from strategies.common import (
    build_clip,
    noise_multiplier,
    not_hidden,
    only,
    server_optimizer,
    user_task,
)

_COLUMNS = 65_536  # of the gradients that are float64 at once

Matrix = npt.NDArray[np.float64]


def distances(gradients: torch.Tensor) -> Matrix:
    """Return (users, users) float64: L2 distances between the rows of (users, parameters).

    By ‖a‖² + ‖b‖² - 2ab, a block of columns at a time: below about 1e-8 of the norms a distance is
    rounding. The diagonal is 0.
    """
    gram = torch.zeros(len(gradients), len(gradients), dtype=torch.float64)
    for start in range(0, gradients.shape[1], _COLUMNS):
        block = gradients[:, start : start + _COLUMNS].double()
        gram += block @ block.T
    squares = gram.diagonal()
    squared = (squares[:, None] + squares[None, :] - 2.0 * gram).clamp_(min=0.0)
    squared.fill_diagonal_(0.0)
    return squared.sqrt_().numpy()


def concentration_score(between: Matrix, radius: float) -> float:
    """Return s, eq. 1: how many pairs are within τ, over N; N at most, counting (i, i) too."""
    return float(np.count_nonzero(between <= radius)) / len(between)


def filter_weights(between: Matrix, radius: float) -> npt.NDArray[np.float64]:
    """Return p, line 12: 0 for a user with under N/2 users within 2τ, 1 from 2N/3 on, else linear.

    The paper keeps a user with this probability. Here it is the user's weight in the mean: its
    expectation is near the same, and what one user moves is then bounded for certain. With coins
    the number of others who change sides has a tail, which the noise would have to cover.
    """
    count = len(between)
    near = np.count_nonzero(between <= 2.0 * radius, axis=1)
    weights: npt.NDArray[np.float64] = ((near - count / 2.0) / (count / 6.0)).clip(0.0, 1.0)
    return weights


@dataclass(frozen=True)
class FilteredMean:
    """The mean weighted by the filter, Σ w g / Σ w. Sensitivity 24 τ/N to replacing one user.

    That holds while the score of one of the neighbours is at least 2N/3 + 1, see
    `fedsim.accounting.above_threshold`. Proof. Some user's τ-ball holds 2N/3 + 1 users; all of
    them but the replaced one have weight 1 before and after. Of the others each weight moves by
    at most 6/N, together less than 2; the replaced user's two weights are at most 1 each. Any two
    users of positive weight have a common neighbour, so they are 4τ apart at most. Taking weight
    e away from a mean of weight W >= 2N/3, all within 4τ, moves it by at most 4τ e/W; e <= 4.

    Attributes:
        radius: τ.
        num_users: N.
    """

    radius: float
    num_users: int
    sampling_probability: float = field(default=1.0, init=False)
    kind: str = field(default="filtered-mean", init=False)

    def __post_init__(self) -> None:
        if not 0.0 < self.radius < float("inf"):
            raise ValueError(f"radius = {self.radius}: must be positive and finite")

    def __call__(self, total: WeightedSum) -> dict[str, torch.Tensor]:
        """Return the weighted mean; zero where nobody has weight."""
        return scale(total.values, 1.0 / total.weight if total.weight else 0.0)

    def sensitivity(self, bound: float) -> float:
        """Return 24 τ/N, whatever the clip's bound is: concentration bounds what a user moves."""
        return 24.0 * self.radius / self.num_users

    @property
    def rounded_weight(self) -> float:
        """Zero: every user's gradient is computed in a pass of its own, and added in float64."""
        return 0.0

    def describe(self) -> dict[str, float | str]:
        """Return the kind, τ and N."""
        return {"kind": self.kind, "radius": self.radius, "num_users": self.num_users}


class Filtered:
    """Asks for one user at a time and returns Σ w g over the cohort, w the filter's weights.

    Holds cohort × parameters float32: the rounding to float32 is part of a user's own gradient.
    One message a user, one after another, so that several workers take no less time than one.

    Args:
        inner: carries shards of one user to the clients and clips.
        test: AboveThreshold, one for the run.
        radius: τ.
        seed: of the run; the threshold's noise is a function of it, so a resumed run has the same.
    """

    def __init__(self, inner: Executor, test: AboveThreshold, radius: float, seed: int) -> None:
        self._inner = inner
        self._test = test
        self._radius = radius
        self._seed = seed

    @cached_property
    def _noisy_threshold(self) -> float:
        return self._test.noisy_threshold(stream(self._seed, "concentration"))

    def clipped_sum(self, parameters: Tensors, cohort: Keys, clip: Clip, round: int) -> WeightedSum:
        """Return the filtered sum; its weight is Σ w, its counts are of the whole cohort.

        Raises:
            HaltedError: the noisy score is below the noisy threshold. Nothing is released.
        """
        gradients = torch.empty(len(cohort), sum(value.numel() for value in parameters.values()))
        alone = []
        for row in range(len(cohort)):
            one = self._inner.clipped_sum(parameters, cohort[row : row + 1], clip, round)
            _write(one.values, gradients[row])
            alone.append(replace(one, values={}))
        between = distances(gradients)
        self._halt_unless_concentrated(concentration_score(between, self._radius), round)
        weights = torch.from_numpy(filter_weights(between, self._radius))
        return WeightedSum(
            values=_read(weights, gradients, parameters),
            weight=float(weights.sum()),
            num_units=sum(one.num_units for one in alone),
            num_non_finite=sum(one.num_non_finite for one in alone),
            num_gradients=sum(one.num_gradients for one in alone),
            loss=sum(one.loss for one in alone),
        )

    def _halt_unless_concentrated(self, score: float, round: int) -> None:
        # The message must not tell the score: only that the test failed is paid for.
        source = stream(self._seed, "concentration", round, unit=1)
        if not self._test.passes(score, self._noisy_threshold, source):
            raise HaltedError(
                f"round {round}: the users' gradients are not concentrated within "
                f"strategy.concentration_radius = {self._radius:g}; no further round is run, what "
                "was released before stays valid"
            )


def _write(values: Tensors, row: torch.Tensor) -> None:
    start = 0
    for value in values.values():
        row[start : start + value.numel()] = value.flatten().cpu()
        start += value.numel()


def _read(weights: torch.Tensor, gradients: torch.Tensor, layout: Tensors) -> Tensors:
    """Return Σ w g in the layout of the parameters, float64, a parameter at a time."""
    total, start = {}, 0
    for name, value in layout.items():
        columns = gradients[:, start : start + value.numel()].double()
        total[name] = (weights @ columns).view(value.shape).to(value.device)
        start += value.numel()
    return total


MOST_BYTES = 4 * 2**30  # of all users' gradients, which a round holds at once

_ASSUMPTIONS = (
    "Half of the ε pays for AboveThreshold over the whole run; the other half, and the δ that is "
    "left by the probability that the test is wrong, for the Gaussian releases.",
    "The noise is scaled to 24 τ/N, the sensitivity proved here for users weighted by the filter. "
    "The scale printed in Algorithm 3 (Chua et al. 2024) is for coins and is not used.",
    "A round that halted the run is charged like one that released.",
)


def build(config: Config, materials: Materials) -> RoundPlan:
    """Return the plan: all users, tested for concentration within τ, filtered, averaged, noised.

    Chua et al.'s Algorithm 3 with three changes, all for a proof: users are weighted by the
    filter's probability instead of drawn with it; the noise is scaled to what is proved
    (`FilteredMean`); and updates are clipped, which brings no two of them further apart.

    Raises:
        ConfigError: no τ or ε, what the proof does not cover, too few users for the ε, or more
            gradients than fit into memory.
    """
    strategy, privacy = config.strategy, config.privacy
    only(
        strategy,
        cohort_size=strategy.cohort_size,
        batch_size=strategy.batch_size,
        user_weight_cap=strategy.user_weight_cap,
    )
    _refuse_uncovered(config)
    if strategy.concentration_radius is None or privacy.epsilon is None:
        raise ConfigError(
            f"strategy.concentration_radius = {strategy.concentration_radius}, privacy.epsilon = "
            f"{privacy.epsilon}: strategy 'asi-liu' needs both, the radius τ that gradients must "
            "be within and the ε that test and releases share"
        )
    num_users = materials.split.num_users
    _check_memory(num_users, materials)
    law = ConcentratedSampling(num_users, privacy.epsilon / 2.0)
    _check_population(config, law)
    test, radius = halting_test(num_users, law.test_epsilon), strategy.concentration_radius
    replacing = privacy.model_copy(update={"relation": privacy.relation or "replace-one"})
    return RoundPlan(
        strategy=strategy.name,
        unit="user",
        pool=np.arange(num_users, dtype=np.int64),
        sampling=law,
        task=user_task(strategy),
        clip=build_clip(strategy.clip, materials.model),
        estimator=FilteredMean(radius, num_users),
        noise_multiplier=noise_multiplier(
            config.model_copy(update={"privacy": replacing}), law, units_per_user=1
        ),
        units_per_user=1,
        relation=Relation(replacing.relation),
        optimizer=server_optimizer(config),
        entropy=privacy.noise,
        assumptions=(
            not_hidden(num_users, "users"),
            *_ASSUMPTIONS,
        ),
        accountant=privacy.accountant,
        around=lambda inner, seed: Filtered(inner, test, radius, seed),
    )


def _refuse_uncovered(config: Config) -> None:
    strategy, privacy = config.strategy, config.privacy
    if strategy.sampling.kind != "poisson":  # the key's default; nobody is sampled
        raise ConfigError(
            f"strategy.sampling.kind = {strategy.sampling.kind!r}: strategy 'asi-liu' takes all "
            "users every round; remove it"
        )
    if strategy.estimator.kind != "fixed":
        raise ConfigError(
            f"strategy.estimator.kind = {strategy.estimator.kind!r}: strategy 'asi-liu' has an "
            "estimator of its own; remove it"
        )
    if strategy.clip.schedule is not None or strategy.clip.adaptive is not None:
        raise ConfigError(
            "strategy.clip: strategy 'asi-liu' has noise of the concentration radius, not of the "
            "clip; remove schedule and adaptive"
        )
    if privacy.noise == "secure":
        raise ConfigError(
            'privacy.noise = "secure": the noise of the threshold must be the same after a resume; '
            "strategy 'asi-liu' takes only \"seeded\""
        )


def _check_population(config: Config, law: ConcentratedSampling) -> None:
    declared, delta = config.privacy.declared_num_users, config.privacy.delta
    if declared is not None and declared != law.population:
        raise ConfigError(
            f"privacy.declared_num_users = {declared}: there are {law.population} users, and the "
            "proof of strategy 'asi-liu' rests on the true number; remove it"
        )
    wrong = failure_probability(law, config.strategy.rounds)
    if delta is not None and wrong >= delta:
        raise ConfigError(
            f"privacy.epsilon = {config.privacy.epsilon}, privacy.delta = {delta:g}: with "
            f"{law.population} users the test of strategy 'asi-liu' may be wrong with probability "
            f"{wrong:.2g}; it needs a larger epsilon, or {_users_needed(law, config)} users"
        )


def _users_needed(law: ConcentratedSampling, config: Config) -> int:
    """Return a number of users, within 5 %, for which the test is sure enough."""
    count, delta = law.population, config.privacy.delta or 0.0
    while (
        failure_probability(ConcentratedSampling(count, law.test_epsilon), config.strategy.rounds)
        >= delta / 2.0
    ):
        count += max(1, count // 20)
    return count


def _check_memory(num_users: int, materials: Materials) -> None:
    parameters = sum(value.numel() for value in materials.model.initial_parameters().values())
    if (needed := 4 * num_users * parameters) > MOST_BYTES:
        raise ConfigError(
            f"strategy.name = 'asi-liu': holds the gradients of all {num_users} users at once, "
            f"{needed / 2**30:.1f} GiB for {parameters} parameters, more than "
            f"{MOST_BYTES / 2**30:g}; take fewer users, model.trainable or model.lora_rank"
        )

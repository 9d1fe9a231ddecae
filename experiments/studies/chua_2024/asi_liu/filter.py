"""The filtered mean of Asi & Liu (2024; Chua et al. 2024, Algorithm 3), and its executor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from fedsim.clipping import Clip
from fedsim.errors import HaltedError
from fedsim.estimators import Estimator, WeightedSum
from fedsim.execution import Executor, Keys
from fedsim.experiments.studies.chua_2024.asi_liu.sampling import (
    AboveThreshold,
    ConcentratedSampling,
)
from fedsim.sampling import Relation, Sampling
from fedsim.seeding import Draws
from fedsim.tensors import Tensors

_COLUMNS = 65_536  # columns of the gradients converted to float64 at a time
# Minimum radius over the clip's bound. With millions of parameters, the error of a squared distance
# is about 1e-13 of the squared norms. A distance of 1e-3 then has a relative error of 1e-7; a
# distance of 1e-6, of several per cent.
_LEAST_RADIUS = 1e-3

Matrix = npt.NDArray[np.float64]


def distances(gradients: torch.Tensor) -> Matrix:
    """Return (users, users) float64: L2 distances between the rows of (users, parameters).

    Computed as ‖a‖² + ‖b‖² - 2ab in blocks of columns. A distance below about 1e-8 of the norms is
    only rounding error. The diagonal is 0.
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
    """Return s, eq. 1: the number of pairs within τ, including (i, i), divided by N; at most N."""
    return float(np.count_nonzero(between <= radius)) / len(between)


def filter_weights(between: Matrix, radius: float) -> npt.NDArray[np.float64]:
    """Return p, line 12: 0 with under N/2 users within 2τ, 1 from 2N/3 on, linear between.

    The paper keeps a user with this probability. Here it is the user's weight in the mean. The
    expectation is nearly the same, but the influence of one user is then strictly bounded. With
    coins, the number of other users that change sides has a tail, which the noise must cover.
    """
    count = len(between)
    near = np.count_nonzero(between <= 2.0 * radius, axis=1)
    weights: npt.NDArray[np.float64] = ((near - count / 2.0) / (count / 6.0)).clip(0.0, 1.0)
    return weights


@dataclass(frozen=True)
class FilteredMean(Estimator):
    """The mean weighted by the filter, Σ w g / Σ w. Sensitivity 24 τ/N to replacing one user.

    This holds if the score of one neighbour is at least 2N/3 + 1 (`accountant.py`). Proof. The
    τ-ball of some user holds 2N/3 + 1 users. All of them except the replaced one have weight 1
    before and after. The weight of each other user moves by at most 6/N, in total by less than 2.
    The replaced user's two weights are at most 1 each. Any two users of positive weight have a
    common neighbour, so they are at most 4τ apart. Removing weight e from a mean of weight
    W >= 2N/3, all within 4τ, moves it by at most 4τ e/W; e <= 4.

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

    def factor(self, total: WeightedSum) -> float:
        """Return 1 / Σ w; zero if all weights are zero."""
        return 1.0 / total.weight if total.weight else 0.0

    def sensitivity(self, bound: float) -> float:
        """Return 24 τ/N: concentration, not the clip, bounds the influence of a user.

        Raises:
            ValueError: τ is too small, relative to the clip's bound, for exact `distances`.
        """
        if self.radius < _LEAST_RADIUS * bound:
            raise ValueError(
                f"radius = {self.radius}: distances between updates of norm {bound:g} are not "
                f"exact enough; take at least {_LEAST_RADIUS * bound:g}, or a lower clip"
            )
        return 24.0 * self.radius / self.num_users

    def unproved(self, sampling: Sampling, relation: Relation, units_per_user: int) -> str | None:
        """Return which of the arguments the proof does not cover, or None."""
        if relation is not Relation.REPLACE or units_per_user > 1:
            return "a relation that is not replace-one, or several units per user"
        if not isinstance(sampling, ConcentratedSampling):
            return f"{sampling.kind!r} sampling, which does not test rounds"
        if sampling.population != self.num_users:
            return f"a population of {sampling.population} with num_users = {self.num_users}"
        return None

    def describe(self) -> dict[str, float | str]:
        """Return the kind, τ and N."""
        return {"kind": self.kind, "radius": self.radius, "num_users": self.num_users}


class Filtered:
    """An executor that tests a round and returns Σ w g over the cohort, w the filter's weights.

    It holds cohort × parameters float32; rounding to float32 counts as part of a user's gradient.
    It requests one user at a time, so several workers are not faster than one.

    Args:
        inner: executor that computes and clips the update of one user.
        test: AboveThreshold, one per run.
        radius: τ.
        draws: draws of the run, for the test's noise; a resumed run has the same threshold.
    """

    def __init__(self, inner: Executor, test: AboveThreshold, radius: float, draws: Draws) -> None:
        self._inner = inner
        self._test = test
        self._radius = radius
        self._draws = draws

    @cached_property
    def _noisy_threshold(self) -> float:
        return self._test.noisy_threshold(self._draws.part_source(0, 0))

    def clipped_sum(self, parameters: Tensors, cohort: Keys, clip: Clip, round: int) -> WeightedSum:
        """Return the filtered sum, with weight Σ w and counts over the whole cohort.

        Raises:
            HaltedError: the noisy score is below the noisy threshold; the round has no release.
        """
        gradients = torch.empty(len(cohort), sum(value.numel() for value in parameters.values()))
        sums = []
        for row in range(len(cohort)):
            of_user = self._inner.clipped_sum(parameters, cohort[row : row + 1], clip, round)
            _write(of_user.values, gradients[row])
            sums.append(replace(of_user, values={}))
        between = distances(gradients)
        self._halt_unless_concentrated(concentration_score(between, self._radius), round)
        weights = torch.from_numpy(filter_weights(between, self._radius))
        return WeightedSum(
            values=_read(weights, gradients, parameters),
            weight=float(weights.sum()),
            num_units=sum(one.num_units for one in sums),
            num_non_finite=sum(one.num_non_finite for one in sums),
            num_gradients=sum(one.num_gradients for one in sums),
            loss=sum(one.loss for one in sums),
            num_unclipped=sum(one.num_unclipped for one in sums),
        )

    def _halt_unless_concentrated(self, score: float, round: int) -> None:
        # The message must not contain the score: the price covers only the outcome of the test.
        source = self._draws.part_source(round, 1)
        if not self._test.passes(score, self._noisy_threshold, source):
            raise HaltedError(
                f"round {round}: the users' gradients are not concentrated within "
                f"strategy.concentration_radius = {self._radius:g}; the run ends here, and earlier "
                "releases stay valid"
            )


def _write(values: Tensors, row: torch.Tensor) -> None:
    start = 0
    for value in values.values():
        row[start : start + value.numel()] = value.flatten().cpu()
        start += value.numel()


def _read(weights: torch.Tensor, gradients: torch.Tensor, layout: Tensors) -> Tensors:
    """Return Σ w g in the layout of the parameters, float64, computed one parameter at a time."""
    total, start = {}, 0
    for name, value in layout.items():
        columns = gradients[:, start : start + value.numel()].double()
        total[name] = (weights @ columns).view(value.shape).to(value.device)
        start += value.numel()
    return total

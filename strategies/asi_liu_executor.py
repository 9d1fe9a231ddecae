"""Every user's gradient by itself, the concentration test and the filter, as one executor."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch

from fedsim.clipping import Clip
from fedsim.concentration import concentration_score, distances, filter_weights
from fedsim.errors import HaltedError
from fedsim.estimators import WeightedSum
from fedsim.execution import Executor, Keys
from fedsim.seeding import stream
from fedsim.sparse_vector import AboveThreshold
from fedsim.tensors import Tensors


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

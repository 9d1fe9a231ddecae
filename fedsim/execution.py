"""Interfaces of the client's half of a round: Unit, Update, Task, Engine, Executor, Accumulator."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict

from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.tensors import Tensors, add_, all_finite, block_of_zeros

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Unit:
    """The examples of one sampled unit, and the unit's weight.

    Attributes:
        key: the unit's index in the data (a user or an example).
        tokens: (num_examples, length) int64, padded with 0 on the right; may have no rows. Token
            ids, and -1 - id for context tokens: see `fedsim.evaluation.losses`.
        lengths: (num_examples,) int64.
        weight: in [0, 1].
        streams: (num_examples,) int64, the seed of each example's draws (its place in local
            training, its dropout masks); None if the task draws nothing.

    Raises:
        ValueError: a weight out of range, or parts that do not fit each other.
    """

    key: int
    tokens: torch.Tensor
    lengths: torch.Tensor
    weight: float = 1.0
    streams: torch.Tensor | None = None

    def __post_init__(self) -> None:
        # Both sensitivities of Lemma 1 need weights that never exceed 1.
        if not 0.0 <= self.weight <= 1.0:
            raise ValueError(f"weight = {self.weight} of unit {self.key}: must be in [0, 1]")
        # Engines lay all units' tokens end to end: a longer length would reach the next user's.
        count, *width = self.tokens.shape or (-1,)
        fits = len(width) == 1 and not self.lengths.is_floating_point()
        for counted in (self.lengths, self.streams):
            fits = fits and (counted is None or counted.shape == (count,))
        if not fits or not all(1 <= size <= width[0] for size in self.sizes):
            raise ValueError(
                f"tokens of unit {self.key}: have shape {tuple(self.tokens.shape)}, with lengths "
                f"of shape {tuple(self.lengths.shape)}: give (examples, length) tokens, a whole "
                "length from 1 to that for each example, and as many streams or None"
            )

    @cached_property
    def sizes(self) -> list[int]:
        """The lengths as Python integers: loops over units are slow with tensors."""
        sizes: list[int] = self.lengths.tolist()
        return sizes


@dataclass(frozen=True, eq=False)
class Update:
    """What one unit computed: a gradient or a difference of parameters, before the clip.

    Attributes:
        values: in the layout of the parameters.
        loss: the mean loss over the unit's examples at the round's parameters, for the log.
        num_gradients: number of example gradients computed.
    """

    values: Tensors
    loss: float
    num_gradients: int


class TaskSpec(BaseModel):
    """A task's name (entry points `fedsim.tasks`) and its options, sent to workers as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    options: Mapping[str, Any] = {}


class Task(Protocol):
    """Selects a unit's examples and computes its update; see the package `clients`.

    Attributes:
        averages_gradients: whether the update is the mean of the unit's example gradients at
            the round's parameters, so that an engine may compute many units at once.
    """

    averages_gradients: ClassVar[bool]

    def unit(self, key: int, round: int) -> Unit:
        """Return the unit's examples for this round.

        They depend only on the seed, the round, and the user's name and text. Seed draws with the
        keys of `fedsim/data/store/keys.py`, never with `key`: it is a position in the data, which
        changes when another user is added.
        """
        ...

    def units(self, keys: Keys, round: int) -> list[Unit]:
        """Return `unit` of each key; much faster for many keys than one call for each."""
        ...

    def update(self, parameters: Tensors, unit: Unit, round: int) -> Update:
        """Return the unit's update at `parameters`; zero for a unit without examples.

        Do not write into the parameters: they may be the server's own memory. The round would fail.
        """
        ...


class Engine(Protocol):
    """Computes the clipped sum over units; all engines return the sum that `loop` returns."""

    def __call__(
        self,
        task: Task,
        parameters: Tensors,
        keys: Keys,
        clip: Clip,
        round: int,
    ) -> WeightedSum:
        """Return Σ w·clip(update) over the units `keys`."""
        ...


class Executor(Protocol):
    """Computes the clipped sum of a whole cohort, in this process or on workers.

    An executor of your own needs only this method: `docs/how-to/own-loop.md`.

    Formal guarantees, on which the ε rests:

    - Each unit is added once, as w·clip(update) with a weight w in [0, 1]; `Accumulator` does that.
    - An update depends only on the parameters, the round, and the unit's own data. It uses no batch
      statistics and no state from other units.
    """

    def clipped_sum(self, parameters: Tensors, cohort: Keys, clip: Clip, round: int) -> WeightedSum:
        """Return Σ w·clip(update) over exactly the units of `cohort`, or raise.

        Args:
            parameters: the server's parameters, float32. Do not change them.
            cohort: (num_drawn,) int64, entries of the plan's pool; may be empty.
            clip: the clip of this round.
            round: the round's number, from 0.
        """
        ...


class Accumulator:
    """Checks, clips and weights units, and adds them to a sum in place: for your own `Executor`.

    Engines that add many units at once apply the same rule to norms and factors, in
    `clients/engines/clipped_sums.py`. Change both places together.

    Args:
        layout: names, shapes and device of the updates, which are those of the parameters.
        clip: bounds each update.
        norm_error: relative error of norms, see `Clip.batch_factors`. Some engines add most units
            in another way, and give the margin of that way here.

    Examples:
        >>> from fedsim.clipping import FlatClip
        >>> total = Accumulator({"w": torch.zeros(2)}, FlatClip(l2_clip_norm=1.0))
        >>> for gradient in ([30.0, 40.0], [0.0, 0.5], [math.nan, 0.0]):
        ...     total.add(Update({"w": torch.tensor(gradient)}, loss=0.7, num_gradients=1))
        >>> total.total().values["w"].numpy().round(4).tolist(), total.total().num_non_finite
        ([0.6, 1.3], 1)
    """

    def __init__(self, layout: Tensors, clip: Clip, *, norm_error: float = 0.0) -> None:
        self._values = block_of_zeros(layout, torch.float64)
        self.clip = clip
        self._norm_error = norm_error
        self._weight = 0.0
        self._units = self._non_finite = self._gradients = self._unclipped = 0
        self._loss = 0.0

    @torch.no_grad()
    def add(self, update: Update, weight: float = 1.0) -> None:
        """Add w·clip(update), or zero if the update is not finite, and count the unit.

        An update is not finite if it contains a NaN or an infinity: its clip factor is meaningless,
        since min(1, S/NaN) is 1 in many libraries. An infinite squared norm, whose factor is 0,
        counts as not finite too. The unit keeps its weight, so a clipped denominator counts it.

        Raises:
            ValueError: a weight outside [0, 1], or another layout.
        """
        if not 0.0 <= weight <= 1.0:
            raise ValueError(f"weight = {weight}: must be in [0, 1]")
        factors = self.clip.factors(update.values, norm_error=self._norm_error)
        if all_finite(update.values) and all(factor > 0.0 for factor in factors.values()):
            add_(self._values, update.values, {k: weight * f for k, f in factors.items()})
            whole = self.clip.unclipped_factor
            self._unclipped += all(factor == whole for factor in factors.values())
        else:
            self._non_finite += 1
            self._unclipped += 1  # counted like a zero update: one unit changes this by 0 or 1
        self._weight += weight
        self._units += 1
        self._gradients += update.num_gradients
        self._loss += update.loss if math.isfinite(update.loss) else 0.0

    def total(self) -> WeightedSum:
        """Return the sum so far."""
        return WeightedSum(
            values=self._values,
            weight=self._weight,
            num_units=self._units,
            num_non_finite=self._non_finite,
            num_gradients=self._gradients,
            loss=self._loss,
            num_unclipped=self._unclipped,
        )


def shards(cohort: Keys, size: int) -> Iterator[Keys]:
    """Cut a cohort into shards of at most `size` >= 1 units; an empty cohort gives no shard."""
    for start in range(0, len(cohort), size):
        yield cohort[start : start + size]

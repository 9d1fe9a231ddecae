"""Engine `vmap`: mean gradients of many units in one pass, by `torch.func.vmap` over `grad`.

On a CPU two to four times as fast as the loop if a unit has one or two sequences: the loop then
spends its time launching small operations. Units are grouped by number of examples and padded
length, which depends on the unit alone. Padding never contributes to a loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch.func import grad_and_value, vmap

from fedsim.clients.engines.pass_shape import pass_shape
from fedsim.clients.models.dropout import row_streams, unit_streams
from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.evaluation.losses import example_losses, token_ids
from fedsim.execution import Accumulator, Keys, Task, Unit, Update
from fedsim.language_model import LanguageModel
from fedsim.tensors import Tensors, zeros_like

# Limits on the gradients of a batch: 16 units and 2^26 entries (256 MiB). More units were slower on
# a CPU because of fresh memory pages.
_MAX_UNITS = 16
_MAX_ENTRIES = 2**26


class VmapEngine:
    """Engine by `torch.func`: equals `loop` for mean gradients; refuses other tasks."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._shape = pass_shape(model)

    def refused(self, parameters: Tensors, unit: Unit) -> str | None:
        """Return why torch cannot vectorise the model, from a trial on `unit`; None if it can."""
        try:
            list(self._updates(parameters, [unit]))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, LookupError, TypeError, ValueError) as error:
            return (str(error).splitlines() or [type(error).__name__])[0]
        return None

    def __call__(
        self, task: Task, parameters: Tensors, keys: Keys, clip: Clip, round: int
    ) -> WeightedSum:
        """Return Σ w·clip(mean gradient), computing units of equal shape together.

        Raises:
            ValueError: the task's update is not a mean gradient.
            RuntimeError, NotImplementedError: torch cannot vectorise the model.
        """
        if not task.averages_gradients:
            raise ValueError(f"task {type(task).__name__}: its update is not a mean gradient")
        accumulator = Accumulator(parameters, clip)
        most = _most(parameters)
        for units in self._batches((task.unit(int(key), round) for key in keys), most):
            for unit, update in zip(units, self._updates(parameters, units), strict=True):
                accumulator.add(update, unit.weight)
        return accumulator.total()

    def _updates(self, parameters: Tensors, units: Sequence[Unit]) -> Iterator[Update]:
        count = len(units[0].lengths)
        if count == 0:
            for _ in units:
                yield Update(zeros_like(parameters), loss=0.0, num_gradients=0)
            return
        # A small batch is filled with its last unit: see `PassShape`.
        length = self._padded(units[0])
        filled = self._shape.filled(len(units), _most(parameters))
        stacked = [*units, *[units[-1]] * (filled - len(units))]
        inputs = [*_stacked(stacked, length)]
        streams = unit_streams(stacked)
        if streams is not None:
            inputs.append(streams.view(len(stacked), count))
        gradients, losses = vmap(grad_and_value(self._loss), in_dims=(None, *[0] * len(inputs)))(
            dict(parameters), *(value.to(self._model.device) for value in inputs)
        )
        for row in range(len(units)):
            values = {name: gradient[row] for name, gradient in gradients.items()}
            yield Update(values, loss=float(losses[row]), num_gradients=count)

    def _padded(self, unit: Unit) -> int:
        return self._shape.padded(unit.tokens.shape[1]) if len(unit.lengths) else 0

    def _batches(self, units: Iterator[Unit], most: int) -> Iterator[list[Unit]]:
        """Group units with equal numbers of examples and padded lengths, `most` at a time."""

        def size(unit: Unit) -> tuple[int, int]:
            return len(unit.lengths), self._padded(unit)

        for _, alike in groupby(sorted(units, key=lambda unit: (*size(unit), unit.key)), key=size):
            group = list(alike)
            for start in range(0, len(group), most):
                yield group[start : start + most]

    def _loss(
        self,
        parameters: Tensors,
        tokens: torch.Tensor,
        lengths: torch.Tensor,
        streams: torch.Tensor | None = None,
    ) -> torch.Tensor:
        with row_streams(streams):
            logits = self._model.logits(parameters, token_ids(tokens))
        return example_losses(logits, tokens, lengths).mean()


def _most(parameters: Tensors) -> int:
    """Return the maximum number of units of a batch."""
    size = sum(value.numel() for value in parameters.values())
    return max(1, min(_MAX_UNITS, _MAX_ENTRIES // max(1, size)))


def _stacked(units: Sequence[Unit], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (units, examples, length) tokens and (units, examples) lengths."""
    tokens = torch.zeros(len(units), len(units[0].lengths), length, dtype=torch.int64)
    for row, unit in enumerate(units):
        tokens[row, :, : unit.tokens.shape[1]] = unit.tokens
    return tokens, torch.stack([unit.lengths for unit in units])

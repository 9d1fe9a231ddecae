"""Engine over chunks of units: a forward and backward pass, norms, clip factors, one sum.

`materialised` and `ghost` share this code. They differ in their `Gradients`: the first forms
per-unit gradients for norms and sums, the second does not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter

import torch

from fedsim.clients.engines.clipped_sums import PartialSum, clip_factors, shares
from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.pass_shape import PassShape, pass_shape
from fedsim.clients.engines.per_example import chunks
from fedsim.clients.engines.per_example.capture import (
    HookedLayer,
    NotCovered,
    OpenModel,
    find_layers,
    run,
)
from fedsim.clients.engines.per_example.gradient_terms import Gradients, Term
from fedsim.clients.engines.per_example.packing import row_tokens
from fedsim.clients.engines.per_example.passes import passes
from fedsim.clients.engines.per_example.verification import verify
from fedsim.clients.models.mixed_precision import in_float32
from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.execution import Keys, Task, Unit
from fedsim.tensors import Tensors, one_thread_an_operation
from fedsim.utils.machine import keep_freed_memory

log = logging.getLogger(__name__)


class Buffers:
    """Tensors reused from chunk to chunk: fresh memory pages would cost more than the products."""

    def __init__(self) -> None:
        self._tensors: dict[str, torch.Tensor] = {}

    def take(self, name: str, num_units: int, like: torch.Tensor) -> torch.Tensor:
        """Return an uninitialised tensor, (num_units, *like.shape)."""
        tensor = self._tensors.get(name)
        if tensor is None or len(tensor) < num_units or tensor.dtype != like.dtype:
            tensor = self._tensors[name] = like.new_empty(num_units, *like.shape)
        return tensor[:num_units]


class BatchedEngine:
    """Engine by layer rules: equals `loop` for mean gradients; refuses other tasks.

    Before the first chunk it verifies the model's layer rules on made-up units, since the outcome
    must not depend on private text. If a layer has no rule that fits, the engine logs one warning
    and uses `loop` from then on.
    """

    def __init__(
        self,
        model: OpenModel,
        make: Callable[[Buffers, Tensors, int, int], Gradients],
        *,
        num_bytes: int | None = None,
        keeps_terms: bool = False,
        tokens_per_unit: float | None = None,
    ) -> None:
        """Wrap a model.

        Args:
            model: model with layer rules; without them the engine uses `loop`.
            make: function that begins a chunk, from buffers, parameters, the number of units and
                the bytes that it may keep from one pass to the next.
            num_bytes: memory of a chunk, in bytes; by default `chunks.memory_budget` of the device.
            keeps_terms: whether a chunk keeps its terms to its end and forms no gradients of
                matrices; all its passes must then fit in memory together.
            tokens_per_unit: maximum number of tokens of a unit, a public number; None: many.
        """
        self._model = model
        self._make = make
        self._keeps_terms = keeps_terms
        self._buffers = Buffers()
        self._num_bytes = chunks.memory_budget(model.device) if num_bytes is None else num_bytes
        self._tokens_per_unit = tokens_per_unit
        self._layers: Sequence[HookedLayer] = ()
        self._limits: chunks.Limits | None = None
        self._row_tokens = 0
        self._shape = PassShape()
        self._refused = False
        if model.device.type == "cpu":
            keep_freed_memory()

    def __call__(
        self, task: Task, parameters: Tensors, keys: Keys, clip: Clip, round: int
    ) -> WeightedSum:
        """Return Σ w·clip(mean gradient).

        Raises:
            ValueError: the task's update is not a mean gradient.
        """
        if not task.averages_gradients:
            raise ValueError(f"task {type(task).__name__}: its update is not a mean gradient")
        if self._limits is None and not self._refused:
            try:
                self._limits = self._verify(parameters)
            except NotCovered as reason:
                log.warning("%s: no layer rule for %s; computing by loop", self._model.name, reason)
                self._refused = True
        if self._refused:
            return loop(task, parameters, keys, clip, round)
        if self._model.device.type == "cpu":
            return self._together(task, parameters, keys, clip, round)
        # On a GPU the host's operations are small: with sixteen threads each took milliseconds.
        with one_thread_an_operation():
            return self._together(task, parameters, keys, clip, round)

    def _together(
        self, task: Task, parameters: Tensors, keys: Keys, clip: Clip, round: int
    ) -> WeightedSum:
        units = task.units(keys, round)
        non_empty = [unit for unit in units if unit.sizes]
        empty = [unit for unit in units if not unit.sizes]
        total = PartialSum(parameters, clip)

        def add_alone(unit: Unit) -> None:
            total.add(task.update(parameters, unit, round), unit.weight)

        try:
            total.count(empty, torch.zeros(len(empty)), num_unclipped=len(empty))
            self._add_all(total, chunks.in_order(non_empty, self._row_tokens), add_alone)
            return total.total()
        except NotCovered as reason:
            # No fallback to `loop` here: one user's text must not choose the engine of all units.
            raise RuntimeError(
                f"{self._model.name}: no layer rule describes the computation of a text, "
                f'unlike that of made-up texts: {reason}; give executor.engine = "loop"'
            ) from reason

    def _verify(self, parameters: Tensors) -> chunks.Limits:
        model = in_float32(self._model)  # bfloat16 rounds by more than a wrong rule may differ
        self._layers = find_layers(model)

        def a_few_units(layout: Tensors, num_units: int) -> Gradients:
            return self._make(self._buffers, layout, num_units, 0)

        try:
            length = getattr(self._model, "sequence_length", 8)
            self._shape = pass_shape(self._model)
            verify(model, self._layers, parameters, length, a_few_units)
            once, bytes_per_token = chunks.pass_bytes(self._model, parameters, length)
        except torch.OutOfMemoryError:
            raise
        # The network may have unexpected shapes, in-place changes, arguments or outputs, or fewer
        # positions than the made-up unit has tokens.
        except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise NotCovered(f"some layer ({str(error).splitlines()[0]})") from error
        self._row_tokens = row_tokens(model, parameters)
        held = [v for v in parameters.values() if v.ndim == 1 or not self._keeps_terms]
        bytes_per_unit = sum(value.nbytes for value in held)
        device, num_bytes = self._model.device, self._num_bytes
        if device.type == "cuda":  # the budget must also hold tensors of the whole round
            # The parameters, and the sum in float64 and in float32.
            once += sum(value.numel() for value in parameters.values()) * (4 + 8 + 4)
            num_bytes = max(0, num_bytes - once)
        limits = chunks.limits_within(num_bytes, bytes_per_unit, bytes_per_token, device)
        if self._shape.one_size and self._tokens_per_unit is not None:
            # Reduce the pass to a size that the units of a chunk can fill.
            brought = max(length, int(limits.units * self._tokens_per_unit))
            limits = replace(limits, tokens=min(limits.tokens, brought))
        return limits

    def _add_all(
        self, total: PartialSum, ordered: list[Unit], add_alone: Callable[[Unit], None]
    ) -> None:
        """Add all units, one chunk after the other."""
        assert self._limits is not None  # noqa: S101 (set before the first chunk)
        limits, shape, one_pass = self._limits, self._shape, self._keeps_terms
        start = 0
        while start < len(ordered):
            units = chunks.first_chunk(ordered[start:], limits, shape, one_pass=one_pass)
            sizes = units[0].sizes
            if one_pass and len(sizes) * shape.padded(max(sizes)) > limits.tokens:
                units = units[:1]
                add_alone(units[0])  # a unit this large fills its own passes
            else:
                _add(total, units, *self._gradients(total.parameters, units))
            start += len(units)

    def _gradients(self, parameters: Tensors, units: list[Unit]) -> tuple[Gradients, torch.Tensor]:
        assert self._limits is not None  # noqa: S101 (set before the first chunk)
        dtype = next(iter(parameters.values())).dtype
        room = self._limits.room(len(units))
        gradients = self._make(self._buffers, parameters, len(units), room)
        means = torch.zeros(len(units), dtype=dtype, device=self._model.device)
        limit, device = self._limits.tokens, self._model.device
        for part in passes(
            units, limit, device, dtype, row_tokens=self._row_tokens, shape=self._shape
        ):
            gradients.start_pass(part.segments)
            unit_of_row = part.segments.unit_of_row(means.device)
            own = slice(len(unit_of_row))  # the remaining rows are empty

            def take(name: str, term: Term, own: slice = own) -> None:
                some = term.map(itemgetter(own))
                # Copied: a view would keep the memory of the empty rows, too.
                gradients(name, some.map(torch.clone) if self._keeps_terms else some)

            sink = gradients if len(unit_of_row) == len(part.batch.tokens) else take
            losses = run(self._model, self._layers, parameters, part.batch, sink)
            means.index_add_(0, unit_of_row, losses[own].to(dtype))
        return gradients, means


def _add(
    total: PartialSum, units: Sequence[Unit], gradients: Gradients, losses: torch.Tensor
) -> None:
    """Add w·clip(gradient) for the units of a chunk."""
    squares = gradients.squares()
    factors, plain = clip_factors(total.clip, total.parameters, squares)
    unclipped = plain & (factors == total.clip.unclipped_factor).all(dim=1)
    # This waits for the device, so copy all values to the host at once.
    left_out, own_losses, within = int((~plain).sum()), losses.cpu(), int(unclipped.sum())
    if left_out:
        gradients.drop_non_finite()
    total.count(units, own_losses, num_unclipped=within, num_non_finite=left_out)
    gradients.add_weighted(total.narrow(len(units)), shares(factors, units, plain))

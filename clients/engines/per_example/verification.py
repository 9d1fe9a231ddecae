"""Verify the per-layer gradient rules against autograd, before an engine uses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import torch

from fedsim.clients.engines.per_example.capture import HookedLayer, NotCovered, OpenModel, run
from fedsim.clients.engines.per_example.gradient_terms import Gradients
from fedsim.clients.engines.per_example.passes import passes
from fedsim.clients.models.dropout import drops
from fedsim.clients.tasks.gradients import mean_gradient
from fedsim.execution import Unit
from fedsim.language_model import LanguageModel, made_up_text, nudged, spread
from fedsim.tensors import Tensors, l2_norm, zeros_like

# Of the made-up unit.
_EXAMPLES, _TOKENS = 3, 8

# Relative to a parameter's gradient, and to the whole gradient for those that are rounding alone
# (a bias before a softmax). Rules that are wrong are wrong by far more.
_OWN_TOLERANCE, _WHOLE_TOLERANCE = 1e-3, 1e-5
_LARGER = 1.1  # norms with room for rounding, of `ghost`
# Outside, squares or the gradients themselves leave float32; zeros show nothing.
_LEAST_NORM, _LARGEST_NORM = 1e-15, 1e15


def made_up_unit(model: LanguageModel) -> Unit:
    """Return a unit of three short examples, whose tokens are spread over the vocabulary.

    It depends on the model alone: a text that took part in it would decide how everybody's
    gradients are computed and clipped.
    """
    ids = torch.arange(1, _EXAMPLES * _TOKENS + 1).view(_EXAMPLES, _TOKENS)
    lengths = torch.tensor([_TOKENS, _TOKENS - 1, _TOKENS // 2])
    streams = torch.arange(_EXAMPLES) if drops(model) else None
    return Unit(0, spread(ids, model.vocabulary_size), lengths, streams=streams)


def verify(
    model: OpenModel,
    layers: Sequence[HookedLayer],
    parameters: Tensors,
    length: int,
    method: Callable[[Tensors, int], Gradients],
) -> None:
    """Compare the rules with autograd on made-up units.

    Norms and gradients of two units of different size in one chunk must be those of automatic
    differentiation. So they must near these parameters, where what is zero at the start is not;
    and in a row of `length` tokens, the longest that any text has.

    Raises:
        NotCovered: they are not, or the gradients are not finite; names the parameter.
    """
    several = made_up_unit(model)
    first = None if several.streams is None else several.streams[:1]
    one = Unit(several.key, several.tokens[:1], several.lengths[:1], streams=first)
    _check(model, layers, parameters, [one, several], method)
    _check(model, layers, nudged(parameters), [one, several], method)
    if length > _TOKENS:
        row = made_up_text(model, length, 1).cpu()
        long = Unit(1, row, torch.tensor([length]), streams=first)
        with suppress(torch.OutOfMemoryError):  # in float32, which the run may not be in
            _check(model, layers, parameters, [long], method)


def _check(
    model: OpenModel,
    layers: Sequence[HookedLayer],
    parameters: Tensors,
    units: Sequence[Unit],
    method: Callable[[Tensors, int], Gradients],
) -> None:
    dtype = next(iter(parameters.values())).dtype
    gradients = method(parameters, len(units))
    tokens = max(_TOKENS * _EXAMPLES, *(size for unit in units for size in unit.sizes))
    for part in passes(units, tokens, model.device, dtype):
        gradients.start_pass(part.segments)
        run(model, layers, parameters, part.batch, gradients)
    squares = gradients.squares()
    if not squares.isfinite().all():  # one unit's NaN would be in both units' sums
        raise NotCovered("gradients that are not finite")
    for index, small in enumerate(units):
        factors = torch.zeros_like(squares)
        factors[index] = 1.0
        expected = mean_gradient(model, parameters, small).values
        computed = zeros_like(parameters)
        gradients.add_weighted(computed, factors)
        compare(expected, computed, squares[index].sqrt().tolist())


def compare(expected: Tensors, computed: Tensors, norms: Sequence[float]) -> None:
    """Compare gradients, parameter by parameter, and their norms.

    Raises:
        NotCovered: they differ, or are too small or large to be compared; names the parameter.
    """
    whole = l2_norm(expected)
    if not _LEAST_NORM < whole < _LARGEST_NORM:
        raise NotCovered("gradients that are zero or not finite")
    for (name, value), norm in zip(expected.items(), norms, strict=True):
        own = l2_norm({name: value})
        distance = l2_norm({name: value - computed[name]})
        allowed = _OWN_TOLERANCE * own + _WHOLE_TOLERANCE * whole
        if not (distance <= allowed and own - allowed <= norm <= _LARGER * own + allowed):
            raise NotCovered(f"{name} (its rule gives another gradient than the loop)")

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

# The made-up unit: number of examples and tokens.
_EXAMPLES, _TOKENS = 3, 8

# Tolerances: relative to a parameter's gradient, and to the whole gradient for gradients that are
# only rounding error (a bias before a softmax). Wrong rules differ by far more.
_OWN_TOLERANCE, _WHOLE_TOLERANCE = 1e-3, 1e-5
_LARGER = 1.1  # `ghost` may return norms larger by this factor, for rounding
# Outside these bounds, squares or gradients overflow or underflow in float32.
_LEAST_NORM, _LARGEST_NORM = 1e-15, 1e15


def made_up_unit(model: LanguageModel) -> Unit:
    """Return a unit of three short examples, whose tokens are spread over the vocabulary.

    It depends on the model alone: with a private text in it, that text would decide how all users'
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

    Norms and gradients of two units of different size in one chunk must equal those of autograd.
    The same holds near these parameters, as some are zero at the start, and for a row of `length`
    tokens, the maximum length of a text.

    Raises:
        NotCovered: they differ, or gradients are not finite; the message names the parameter.
    """
    several = made_up_unit(model)
    first = None if several.streams is None else several.streams[:1]
    one = Unit(several.key, several.tokens[:1], several.lengths[:1], streams=first)
    _check(model, layers, parameters, [one, several], method)
    _check(model, layers, nudged(parameters), [one, several], method)
    if length > _TOKENS:
        row = made_up_text(model, length, 1).cpu()
        long = Unit(1, row, torch.tensor([length]), streams=first)
        with suppress(torch.OutOfMemoryError):  # float32 may need more memory than the run
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
    if not squares.isfinite().all():  # a NaN of one unit would enter the sums of both
        raise NotCovered("gradients that are not finite")
    for index, small in enumerate(units):
        factors = torch.zeros_like(squares)
        factors[index] = 1.0
        expected = mean_gradient(model, parameters, small).values
        computed = zeros_like(parameters)
        gradients.add_weighted(computed, factors)
        compare(expected, computed, squares[index].sqrt().tolist())


def compare(expected: Tensors, computed: Tensors, norms: Sequence[float]) -> None:
    """Compare gradients and their norms, parameter by parameter.

    Raises:
        NotCovered: they differ, or are too small or large to compare; the message names the
            parameter.
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

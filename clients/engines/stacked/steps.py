"""Gradients of all users of a stack in one pass, at each user's own parameters, by layer rules."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.nn.functional as F

from fedsim.clients.engines.cross_entropy import Batch
from fedsim.clients.engines.per_example.capture import HookedLayer, OpenModel, run
from fedsim.clients.engines.per_example.gradient_terms import (
    Product,
    Rows,
    Segments,
    Term,
    write_product,
)
from fedsim.clients.engines.per_example.verification import compare, made_up_unit
from fedsim.clients.engines.stacked.forward import Stack, stacked_forwards
from fedsim.clients.tasks.gradients import mean_gradient
from fedsim.evaluation.losses import predicted_mask, token_ids
from fedsim.language_model import nudged
from fedsim.tensors import Tensors, l2_norms, zeros_like

# Numbers of a table's gradient that are formed at once on a CPU: they stay in its cache.
_IN_CACHE = 2**18


class StackedGradients:
    """Gradients of users' losses.

    Args:
        model: the network.
        layers: the layers that use the parameters.
        shape: number of users, and rows per user.
    """

    def __init__(self, model: OpenModel, layers: Sequence[HookedLayer], shape: Stack) -> None:
        self._model, self._layers, self._shape = model, layers, shape
        self._segments = Segments([shape.rows] * shape.users, whole=True)

    def add(
        self, target: Tensors, parameters: Tensors, batch: Batch, *, shared: bool = False
    ) -> torch.Tensor:
        """Add the gradients to `target`, and return the losses, (users,).

        Args:
            target: (users, *shape) for each parameter; may be the parameters.
            parameters: point of the gradients: also a stack, or with `shared` one set of
                parameters for all users.
            batch: the rows, grouped by user.
            shared: see `parameters`.

        Raises:
            NotCovered: a layer was called in a way that its rule does not describe.
        """
        terms: list[tuple[str, Term]] = []

        def keep(name: str, term: Term) -> None:
            terms.append((name, term))

        own = nullcontext() if shared else stacked_forwards(self._layers, self._shape)
        with own:
            losses = run(self._model, self._layers, parameters, batch, keep)
        # Chain rules first: they read parameters, which other terms may change.
        for name, term in terms:
            if isinstance(term, Product) and term.chain is not None:
                self._add_chained(target[name], term, shared=shared)
        for name, term in terms:
            if isinstance(term, Rows) and target[name].is_cuda:
                self._look_up(target[name], term)
            elif not isinstance(term, Product) or term.chain is None:
                term.into(target[name], self._segments, add=True)
        return losses.view(self._shape).sum(dim=1)

    def _look_up(self, target: torch.Tensor, term: Rows) -> None:
        """Add rows in a fixed order; a GPU's `index_add_` has none."""
        tables = self._segments.unit_of_row(target.device)[:, None] * term.num_rows
        places, values = (tables + term.ids).flatten(), term.values.flatten(0, 1)
        rows = len(target) * term.num_rows
        summed = torch.ops.aten.embedding_dense_backward(values, places, rows, -1, False)
        target += summed.view_as(target)

    def _add_chained(self, target: torch.Tensor, product: Product, *, shared: bool) -> None:
        """Add a product through its chain rule, some rows of a table at a time."""
        chain = product.chain
        assert chain is not None  # noqa: S101 (asked before)
        users, num_rows, width = target.shape
        size = num_rows if target.is_cuda else max(1, _IN_CACHE // width)
        sides = (side.reshape(users, -1, side.shape[-1]) for side in (product.left, product.right))
        for user, (left, right) in enumerate(zip(*sides, strict=True)):
            own = chain if shared else chain[user]
            for first in range(0, num_rows, size):
                rows = slice(first, first + size)
                gradient = torch.empty_like(target[user, rows])
                write_product(gradient, left[:, rows].T, right, add=False)
                own[rows](gradient)
                target[user, rows] += gradient


def rows_of(tokens: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and shares of the rows of a batch, (rows, length) each; shares are float64.

    The weighted sum of losses is the mean over rows of the mean over a row's predictions.
    """
    mask = F.pad(predicted_mask(tokens, lengths), (0, 1))  # nothing follows the last token
    counted = mask.sum(dim=1, keepdim=True).clamp(min=1)
    return token_ids(tokens), mask / (counted.double() * len(tokens))


def verify(model: OpenModel, layers: Sequence[HookedLayer], parameters: Tensors) -> None:
    """Compare the gradients of two users with automatic differentiation, on made-up texts.

    Raises:
        NotCovered: they differ, or cannot be compared; names the parameter.
    """
    unit, users = made_up_unit(model), [parameters, nudged(parameters)]
    dtype = next(iter(parameters.values())).dtype
    tokens, shares = (part.repeat(2, 1) for part in rows_of(unit.tokens, unit.lengths))
    streams = None if unit.streams is None else unit.streams.repeat(2).to(model.device)
    batch = Batch(tokens.to(model.device), shares.to(model.device, dtype), streams=streams)
    stacked = StackedGradients(model, layers, Stack(2, len(unit.tokens)))
    stack = {name: torch.stack([own[name] for own in users]) for name in parameters}
    for given, shared, places in ((users[1], True, (1, 1)), (stack, False, (0, 1))):
        total = zeros_like(stack)
        stacked.add(total, given, batch, shared=shared)
        for row, place in enumerate(places):
            computed = {name: value[row] for name, value in total.items()}
            compare(mean_gradient(model, users[place], unit).values, computed, l2_norms(computed))

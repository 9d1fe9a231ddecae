"""Local SGD steps of many users by the layer rules, added in place onto their parameters.

`torch.func.vmap` forms every user's gradient, then reads it again to take the step. Here one pass
over all users' sequences gives the sides of the gradients' products, and each product is added onto
the stack of parameters as it is formed.
"""

from __future__ import annotations

import torch

from fedsim.clients.engines.cross_entropy import Batch, mean_shares
from fedsim.clients.engines.per_example.capture import NotCovered, OpenModel, find_layers, run
from fedsim.clients.engines.per_example.gradient_terms import (
    Chain,
    Product,
    Segments,
    Term,
    write_product,
)
from fedsim.clients.engines.per_example.verification import compare, refuse_other_uses
from fedsim.clients.engines.stacked.forward import Stack, forward_for, stacked_forwards
from fedsim.clients.engines.stacked.step_batches import StepBatch
from fedsim.clients.tasks.mean_gradient import mean_gradient
from fedsim.evaluation.losses import token_ids
from fedsim.execution import Unit
from fedsim.tensors import Tensors

_TOKENS = 8  # of the sequences that are compared
# The verified step is this long, so that the gradient keeps its digits beside the parameters.
_LONG_STEP = 2.0**12
# Bytes of a table's rows that are moved at once: they and their gradients stay in the cache.
_CACHE_BYTES = 2**20


class StackedSteps:
    """Steps of gradient descent on users' own parameters.

    Raises:
        NotCovered: some layer has no rule or cannot run over a stack; names it.
    """

    def __init__(self, model: OpenModel) -> None:
        self._model = model
        self._layers = find_layers(model)
        for layer in self._layers:
            if forward_for(layer.module) is None:
                raise NotCovered(f"{layer.place} ({type(layer.module).__name__})")

    def __call__(
        self,
        local: Tensors,
        start: Tensors,
        batch: StepBatch,
        learning_rate: float,
        *,
        first: bool,
    ) -> torch.Tensor:
        """Move users by −learning rate × gradient and return their losses before it: (users,).

        Args:
            local: (users, *shape) for each parameter, changed in place; ignored in a first step.
            start: where all users are before a first step.
            batch: the sequences.
            learning_rate: of the step.
            first: whether the users are still all at `start`.
        """
        device, dtype = self._model.device, next(iter(start.values())).dtype
        users, rows, _ = batch.tokens.shape
        weights = batch.weights.flatten().to(device, dtype)
        tokens, lengths = batch.tokens.flatten(0, 1).to(device), batch.lengths.flatten().to(device)
        # The gradient is scaled, so that what comes back is the step.
        shares = mean_shares(tokens, lengths, weights)
        step = Batch(token_ids(tokens), shares, scale=-learning_rate)
        terms: list[tuple[str, Term]] = []

        def sink(name: str, term: Term) -> None:
            terms.append((name, term))  # applied later: the pass still reads the weights

        if first:
            losses = run(self._model, self._layers, start, step, sink)
            for name, value in local.items():
                value.copy_(start[name].expand_as(value))
        else:
            with stacked_forwards(self._layers, Stack(users, rows)):
                losses = run(self._model, self._layers, local, step, sink)
        _apply(local, terms, Segments([rows] * users, whole=True))
        return losses.view(users, rows).sum(dim=1)

    def verify(self, parameters: Tensors, unit: Unit) -> None:
        """Compare a second step of two users with automatic differentiation.

        Raises:
            NotCovered: they differ; names the parameter.
            CannotTell: the gradients are not finite.
        """
        tokens, lengths = unit.tokens[:1, :_TOKENS], unit.lengths[:1].clamp(max=_TOKENS)
        ends = torch.stack([lengths, (lengths - 1).clamp(min=1)])
        weights = torch.ones(2, 1, dtype=torch.float64)
        batch = StepBatch(slice(0, 2), tokens.expand(2, 1, -1), ends, weights)
        stack = {name: torch.stack([value, 1.01 * value]) for name, value in parameters.items()}
        before = {name: value.clone() for name, value in stack.items()}
        single = Batch(token_ids(tokens), mean_shares(tokens, lengths, torch.ones(1)))
        refuse_other_uses(self._model, self._layers, parameters, single)
        self(stack, parameters, batch, _LONG_STEP, first=False)
        for user in range(2):
            own = {name: value[user] for name, value in before.items()}
            moved = {n: (own[n] - value[user]) / _LONG_STEP for n, value in stack.items()}
            compare(mean_gradient(self._model, own, Unit(0, tokens, ends[user])).values, moved)


def _apply(local: Tensors, terms: list[tuple[str, Term]], segments: Segments) -> None:
    """Add the terms, each user's onto its own parameters."""
    terms = [(name, term.to(local[name].dtype)) for name, term in terms]
    # Chain rules first: they depend on the parameters before the step.
    for name, term in terms:
        if isinstance(term, Product) and term.chain is not None:
            _apply_chained(local[name], term, term.chain)
    for name, term in terms:
        if not isinstance(term, Product) or term.chain is None:
            term.into(local[name], segments, add=True)


def _apply_chained(stack: torch.Tensor, product: Product, chain: Chain) -> None:
    """Add users' products through their chain rule, some rows of a table at a time."""
    num_users, num_rows, width = stack.shape
    at_once = max(1, _CACHE_BYTES // (stack.element_size() * width))
    buffer = stack.new_empty(min(at_once, num_rows), width)
    lefts, rights = (
        side.reshape(num_users, -1, side.shape[-1]) for side in (product.left, product.right)
    )
    for user, (table, left, right) in enumerate(zip(stack, lefts, rights, strict=True)):
        of_user = chain.of_user(user)
        for first in range(0, num_rows, at_once):
            rows = slice(first, first + at_once)
            gradient = buffer[: num_rows - first]
            write_product(gradient, left[:, rows].T, right, add=False)
            of_user.of_rows(rows).add(table[rows], gradient)

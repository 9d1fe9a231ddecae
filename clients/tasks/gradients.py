"""The gradient of a mean of example losses, shared by all tasks."""

from __future__ import annotations

import torch

from fedsim.clients.models.dropout import row_streams
from fedsim.evaluation.losses import example_losses, token_ids
from fedsim.execution import Unit, Update
from fedsim.language_model import LanguageModel
from fedsim.tensors import Tensors, zeros_like

# Maximum number of sequences of a backward pass; limits memory for users with many examples.
_MICROBATCH = 64


def mean_gradient(model: LanguageModel, parameters: Tensors, unit: Unit) -> Update:
    """Return (1/|D_u|) Σ_z ∇f(θ, z) over the unit's examples z (Charles et al. 2024, Alg. 2).

    f(θ, z) is the example's mean loss over its own predicted tokens, so neither the length of
    an example nor its padding changes its share. A unit without examples gives zero.
    """
    count = len(unit.lengths)
    if count == 0:
        return Update(zeros_like(parameters), loss=0.0, num_gradients=0)
    leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    total: dict[str, torch.Tensor] = {}
    loss_sum = 0.0
    for start in range(0, count, _MICROBATCH):
        rows = slice(start, start + _MICROBATCH)
        tokens = unit.tokens[rows].to(model.device)
        lengths = unit.lengths[rows].to(model.device)
        streams = None if unit.streams is None else unit.streams[rows].to(model.device)
        with row_streams(streams):
            logits = model.logits(leaves, token_ids(tokens))
        loss = example_losses(logits, tokens, lengths).sum() / count
        # Some parameters may have no gradient, such as experts that no token was routed to.
        gradients = (
            torch.autograd.grad(
                loss, list(leaves.values()), allow_unused=True, materialize_grads=True
            )
            if loss.requires_grad
            else tuple(map(torch.zeros_like, parameters.values()))
        )
        for name, gradient in zip(leaves, gradients, strict=True):
            total[name] = gradient if start == 0 else total[name] + gradient
        loss_sum += float(loss.detach())
    return Update(total, loss=loss_sum, num_gradients=count)

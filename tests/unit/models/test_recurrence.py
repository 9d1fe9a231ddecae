"""The LSTM's recurrence against torch's own."""

from __future__ import annotations

import torch
from torch import nn

from fedsim.clients.models.lstm_recurrence import Recurrence

HIDDEN, LENGTH = 5, 7
# torch's gates stand in the order write, forget, candidate, read.
THEIRS = [0, 1, 3, 2]


def by_torch(from_inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Run `nn.LSTM` on what the inputs add to the gates: its own input weight is the identity."""
    lstm = nn.LSTM(4 * HIDDEN, HIDDEN, batch_first=True, bias=False).double()
    reordered = weight.view(4, HIDDEN, HIDDEN)[THEIRS].flatten(0, 1)
    inputs = from_inputs.unflatten(-1, (4, HIDDEN))[..., THEIRS, :].flatten(-2)  # type: ignore[no-untyped-call]
    weights = {
        "weight_ih_l0": torch.eye(4 * HIDDEN, dtype=torch.float64),
        "weight_hh_l0": reordered,
    }
    states: torch.Tensor = torch.func.functional_call(lstm, weights, (inputs,))[0]
    return states


def recur(from_inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    inputs = (from_inputs,)
    return torch.Tensor(torch.func.functional_call(Recurrence(HIDDEN), {"weight": weight}, inputs))


def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(*shape, generator=generator, dtype=dtype)


def test_states_and_gradients_are_those_of_torch() -> None:
    inputs, weight = drawn(3, LENGTH, 4 * HIDDEN), drawn(4 * HIDDEN, HIDDEN)
    found = []
    for run in (recur, by_torch):
        leaves = inputs.clone().requires_grad_(), weight.clone().requires_grad_()
        states = run(*leaves)
        found.append(
            (states, *torch.autograd.grad((states * drawn(3, LENGTH, HIDDEN)).sum(), leaves))
        )
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)

"""The LSTM's recurrence against torch's own, over stacks, and under `torch.func.vmap`."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from fedsim.clients.models.lstm_recurrence import recur

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


@pytest.mark.parametrize("rows", [1, 2])
def test_a_stack_is_each_units_own_run(rows: int) -> None:
    inputs, weights = drawn(4 * rows, LENGTH, 4 * HIDDEN), drawn(4, 4 * HIDDEN, HIDDEN)
    together = recur(inputs, weights)
    assert together.is_contiguous()
    for unit, weight in enumerate(weights):
        own = slice(unit * rows, (unit + 1) * rows)
        torch.testing.assert_close(
            together[own], recur(inputs[own], weight), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("stacked", [False, True])
def test_vmap_gives_each_unit_its_own_gradients_whoever_else_is_there(
    rows: int, stacked: bool
) -> None:
    """To the bit: in bfloat16 models a difference in the last one becomes 1e-3 of a gradient.

    The size is one that vector registers divide; what is left over at the end of a row is rounded
    otherwise.
    """
    inputs = drawn(6, rows, LENGTH, 4 * 64, dtype=torch.float32)
    weights = drawn(6, 4 * 64, 64, dtype=torch.float32) / 8.0

    def loss(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return recur(inputs, weight).square().sum()

    def gradients(units: slice) -> tuple[torch.Tensor, ...]:
        of_units = weights[units] if stacked else weights[0]
        in_dims = (0, 0 if stacked else None)
        return vmap(grad(loss, argnums=(0, 1)), in_dims=in_dims)(inputs[units], of_units)  # type: ignore[no-any-return]

    everybody = gradients(slice(None))
    for unit in range(6):
        alone = gradients(slice(unit, unit + 1))
        weight = weights[unit if stacked else 0]
        plain = grad(loss, argnums=(0, 1))(inputs[unit], weight)
        for of_all, of_one, expected in zip(everybody, alone, plain, strict=True):
            assert torch.equal(of_all[unit], of_one[0])
            torch.testing.assert_close(of_one[0], expected, rtol=1e-4, atol=1e-5)

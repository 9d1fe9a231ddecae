"""LSTM recurrence with an explicit backward pass, of one weight or of a stack of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


def _forward(from_inputs: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return states (..., length, hidden), and tensors for the backward pass, time first.

    The latter are the gates, (length, ..., 4·hidden), sigmoids of write, forget, read and
    candidate; the doubled cells, (length, ..., hidden); and the sigmoids of these. A candidate is
    tanh(x) = 2·sigmoid(2x) − 1, so one kernel computes all four gates. A sigmoid takes a fraction
    of a tanh's time.

    A step has few short operations, and a view costs as much as arithmetic, so the loop contains
    as little as possible. Halved states inside the loop save one operation more.
    """
    by_time, size = from_inputs.movedim(-2, 0), weight.shape[-1]
    twice = weight.new_ones(4 * size)  # factors of the gates' rows
    twice[3 * size :] = 2.0
    recurrent, add_product = (weight * (2.0 * twice)[:, None]).mT, _add_product(weight)
    gates = torch.mul(by_time, twice, out=by_time.new_empty(by_time.shape))  # time first
    halves, cells, squashed = (gates.new_empty(*gates.shape[:-1], size) for _ in range(3))
    views = (gates, *gates.chunk(4, dim=-1), cells, squashed, halves)
    last_cell = last_half = None
    for step in zip(*(view.unbind() for view in views), strict=True):
        opened, write, forget, read, candidate, cell, squeezed, half = step
        # gates(t) = from_inputs(t) + W·h(t-1), then c = f·c + w·g and h = r·tanh(c). Here
        # g = 2s - 1 and tanh(c) = 2s' - 1 with sigmoids s and s'; 2c and h/2 are stored.
        if last_half is not None:
            add_product(opened, last_half, recurrent, out=opened)
        opened.sigmoid_()
        if last_cell is not None:
            torch.mul(forget, last_cell, out=cell).sub_(write, alpha=2)
        else:
            torch.mul(write, -2.0, out=cell)
        torch.sigmoid(cell.addcmul_(write, candidate, value=4), out=squeezed)
        torch.mul(read, squeezed, out=half).sub_(read, alpha=0.5)
        last_cell, last_half = cell, half
    states = _by_sequence(halves).mul_(2.0)
    return states, gates, cells, squashed


def _backward(d_states: torch.Tensor, weight: torch.Tensor, *trace: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the inputs' share of the gates: (..., length, 4·hidden).

    First come the slopes of all steps at once: the factors of a cell's or a state's gradient. The
    loop then computes only the parts that depend on the next step.
    """
    gates, cells, squashed = trace
    write, forget, read, candidate = gates.chunk(4, dim=-1)
    d_gates = _sigmoid_slopes(gates)
    d_write, d_forget, d_read, d_candidate = d_gates.chunk(4, dim=-1)
    d_write.mul_((candidate * 4).sub_(2))
    d_forget[0] = 0.0  # the first step has no previous cell
    d_forget[1:].mul_(cells[:-1])
    d_read.mul_((squashed * 2).sub_(1))
    d_candidate.mul_(write).mul_(8)
    to_cell = _sigmoid_slopes(squashed).mul_(read).mul_(2)
    # Write and forget are adjacent, so one operation does both: (length, ..., 2, hidden).
    both = d_gates.view(*cells.shape[:-1], 4, cells.shape[-1])[..., :2, :]
    from_above, add_product = d_states.unbind(dim=-2), _add_product(weight)
    befores = (from_above[0], *from_above[:-1])
    views = (d_gates, both, d_read, d_candidate, to_cell, forget)
    steps = list(zip(*(view.unbind() for view in views), befores, strict=True))
    d_cell, d_state = torch.zeros_like(cells[0]), from_above[-1].clone()
    for opened, pair, of_read, of_candidate, slope, retained, before in reversed(steps):
        # dc += dh·∂h/∂c; the gates' slopes times dc or dh; then dh(t-1) = above + Wᵀ·dgates.
        d_cell.addcmul_(d_state, slope)
        pair.mul_(d_cell.unsqueeze(-2))
        of_read.mul_(d_state)
        of_candidate.mul_(d_cell)
        add_product(before, opened, weight, out=d_state)
        d_cell.mul_(retained)
    return _by_sequence(d_gates)


def _sigmoid_slopes(values: torch.Tensor) -> torch.Tensor:
    """Return the derivative of a sigmoid at its values."""
    return torch.addcmul(values, values, values, value=-1.0)


class _LstmSteps(torch.autograd.Function):
    """The recurrence; the order of the gates is write, forget, read, candidate.

    The recurrent weight's gradient is one product over all steps; autograd would compute and add a
    product at every step.
    """

    @staticmethod
    def forward(ctx: Any, from_inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 (torch names no type with these attributes)
        """Return states (..., length, hidden)."""
        # Without Python dispatch modes, which would slow down thousands of small operations.
        with torch._C.DisableTorchFunction():
            states, *trace = _forward(from_inputs, weight)
        ctx.save_for_backward(weight, states, *trace)
        return states

    @staticmethod
    def backward(ctx: Any, d_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:  # noqa: ANN401
        """Return the gradients of the inputs' share of the gates and of the weight."""
        weight, states, *trace = ctx.saved_tensors
        d_inputs = _backward(d_states, weight, *trace)
        if not ctx.needs_input_grad[1]:
            return d_inputs, None
        earlier = F.pad(states[..., :-1, :], (0, 0, 1, 0))
        return d_inputs, d_inputs.flatten(-3, -2).mT @ earlier.flatten(-3, -2)


def _add_product(weight: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Return torch's sum of a tensor and a product with `weight`, or with each of a stack."""
    return torch.addmm if weight.dim() == 2 else torch.baddbmm


def _by_sequence(values: torch.Tensor) -> torch.Tensor:
    """Return (..., length, size), contiguous, from a tensor with time first.

    The rounding of bfloat16 products depends on the layout, so the layout must not depend on the
    batch.
    """
    return values.movedim(0, -2).contiguous()


class Recurrence(nn.Module):
    """The recurrent part of an LSTM, given the inputs' share of the gates.

    Attributes:
        weight: (4·hidden, hidden), from the previous state to the gates.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        nn.init.normal_(self.weight, std=hidden_size**-0.5)

    def forward(self, from_inputs: torch.Tensor) -> torch.Tensor:
        """Return states (batch, length, hidden) for (batch, length, 4·hidden), starting from zeros.

        Of a stack of weights, (users, 4·hidden, hidden), the batch is (users, sequences of one).
        Never uses bfloat16: rounding errors would accumulate over the steps.
        """
        with torch.autocast(from_inputs.device.type, enabled=False):
            inputs = from_inputs.to(self.weight.dtype)
            states: torch.Tensor = _LstmSteps.apply(inputs, self.weight)  # type: ignore[no-untyped-call]
        return states

"""What an LSTM does over time, its backward pass spelt out, for one weight or a stack of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class _LstmSteps(torch.autograd.Function):
    """The recurrence with its backward pass spelt out.

    Plain operations would multiply and add the recurrent weight's gradient at every step; here
    it is one product over all steps. Only operations with a batching rule, so that
    `torch.func.vmap` goes through; gates stand in the order write, forget, read, candidate.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        from_inputs: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return states (batch, length, hidden), gates and cells (length, batch, ...).

        The weight may be a stack, (units, 4·hidden, hidden): the batch then is as many runs of
        equal length, a unit's sequences side by side.
        """
        size = weight.shape[-1]
        by_unit = _by_unit(from_inputs, weight)
        hidden = cell = from_inputs.new_zeros(*by_unit.shape[:-2], size)
        all_gates, cells, states = [], [], []
        for from_input in by_unit.unbind(dim=-2):
            multiplied = torch.addmm if weight.dim() == 2 else torch.baddbmm
            gates = multiplied(from_input, hidden, weight.mT)
            open_gates, candidate = gates[..., : 3 * size], gates[..., 3 * size :]
            write, forget, read = open_gates.sigmoid_().chunk(3, dim=-1)
            cell = torch.addcmul(forget * cell, write, candidate.tanh_())
            hidden = read * torch.tanh(cell)
            all_gates.append(gates)
            cells.append(cell)
            states.append(hidden)
        stacked = torch.stack(states, dim=-2)
        return (
            stacked.view(*from_inputs.shape[:-1], size),
            torch.stack(all_gates),
            torch.stack(cells),
        )

    @staticmethod
    def setup_context(
        ctx: Any,  # noqa: ANN401 (torch names no type with these attributes)
        inputs: tuple[torch.Tensor, ...],
        output: tuple[torch.Tensor, ...],
    ) -> None:
        """Keep what the backward pass needs."""
        states, gates, cells = output
        ctx.mark_non_differentiable(gates, cells)
        ctx.save_for_backward(inputs[1], states, gates, cells)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        d_states: torch.Tensor,
        *_unused: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the gradients of the inputs' share of the gates and of the weight."""
        weight, states, gates, cells = ctx.saved_tensors
        back_sigmoid, back_tanh = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
        d_hidden, d_cell = torch.zeros_like(cells[0]), torch.zeros_like(cells[0])
        d_gates, d_states = [], _by_unit(d_states, weight)
        for step in range(len(gates) - 1, -1, -1):
            write, forget, read, candidate = gates[step].chunk(4, dim=-1)
            tanh_cell = torch.tanh(cells[step])
            d_hidden = d_hidden + d_states[..., step, :]
            d_cell = d_cell + back_tanh(d_hidden * read, tanh_cell)
            before = cells[step - 1] if step > 0 else torch.zeros_like(d_cell)
            at_step = torch.cat(
                [
                    back_sigmoid(d_cell * candidate, write),
                    back_sigmoid(d_cell * before, forget),
                    back_sigmoid(d_hidden * tanh_cell, read),
                    back_tanh(d_cell * write, candidate),
                ],
                dim=-1,
            )
            d_gates.append(at_step)
            d_hidden = at_step @ weight
            d_cell = d_cell * forget
        d_inputs = torch.stack(d_gates[::-1], dim=-2)
        if weight.dim() == 3:
            d_inputs = d_inputs.flatten(0, 1)
        if not ctx.needs_input_grad[1]:
            return d_inputs, None
        earlier = torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], dim=1)
        return d_inputs, d_inputs.flatten(0, 1).T @ earlier.flatten(0, 1)


def _by_unit(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return (units, sequences of one, length, size) where the weight is a stack of units'."""
    if weight.dim() == 2:
        return values
    return values.view(len(weight), -1, *values.shape[1:])


class Recurrence(nn.Module):
    """What an LSTM does over time, given what the inputs add to the gates.

    Attributes:
        weight: (4·hidden, hidden), from the state before to the gates.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        nn.init.normal_(self.weight, std=hidden_size**-0.5)

    def forward(self, from_inputs: torch.Tensor) -> torch.Tensor:
        """Return (batch, length, hidden) states for (batch, length, 4·hidden), from zeros."""
        return recur(from_inputs, self.weight)


def recur(from_inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return what `Recurrence` does with this weight, or with a stack of them; see `_LstmSteps`.

    Never in bfloat16: what a step rounds, all later ones would carry along.
    """
    with torch.autocast(from_inputs.device.type, enabled=False):
        inputs = from_inputs.to(weight.dtype)
        states: torch.Tensor = _LstmSteps.apply(inputs, weight)[0]  # type: ignore[no-untyped-call]
    return states

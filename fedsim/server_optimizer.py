"""The server's step: torch's own optimizers as functions of values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fedsim.tensors import Tensors, check_same_layout, l2_norm, scale

OptimizerName = Literal["sgd", "adam", "adafactor"]

_CLASSES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adafactor": torch.optim.Adafactor,
}


@dataclass(frozen=True)
class ServerOptimizer:
    """SGD, Adam or Adafactor with a constant learning rate (Charles et al. 2024, App. F).

    The released estimate is the gradient. For local SGD it is the mean of θ_server − θ_local,
    so that SGD with learning rate 1 is McMahan et al.'s averaging. Where it is longer than
    `max_gradient_norm` it is scaled down to that: of a mean over a batch, batch clipping (Pascanu
    et al. 2013), which bounds no single user's share and gives no guarantee.
    """

    name: OptimizerName
    learning_rate: float
    max_gradient_norm: float | None = None

    def step(
        self, parameters: Tensors, gradient: Tensors, state: Tensors
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Return the next parameters and optimizer state; the arguments stay as they are.

        Args:
            parameters: float32 tensors.
            gradient: same layout, any float dtype.
            state: flat, "parameter/key" → tensor; empty before the first step.

        Examples:
            >>> start = {"w": torch.tensor([1.0])}
            >>> after, _ = ServerOptimizer("sgd", 0.5).step(start, {"w": torch.tensor([0.2])}, {})
            >>> round(after["w"].item(), 6), start["w"].item()
            (0.9, 1.0)
        """
        check_same_layout(parameters, gradient)
        gradient = self._shortened(gradient)
        moved = {name: value.detach().clone() for name, value in parameters.items()}
        for name, value in moved.items():
            value.grad = gradient[name].to(value.dtype)
        optimizer = self._optimizer(moved.values())
        optimizer.load_state_dict(self._nested(optimizer, list(moved), state))
        optimizer.step()
        for value in moved.values():
            value.grad = None
        return moved, self._flat(optimizer, list(moved))

    def _shortened(self, gradient: Tensors) -> Tensors:
        norm = math.inf if self.max_gradient_norm is None else self.max_gradient_norm
        length = 0.0 if math.isinf(norm) else l2_norm(gradient)
        return gradient if length <= norm else scale(gradient, norm / length)

    def _optimizer(self, values: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        return _CLASSES[self.name](list(values), lr=self.learning_rate)

    @staticmethod
    def _nested(
        optimizer: torch.optim.Optimizer, names: list[str], state: Tensors
    ) -> dict[str, Any]:
        nested: dict[int, dict[str, torch.Tensor]] = {}
        for path, value in state.items():
            name, _, key = path.rpartition("/")
            nested.setdefault(names.index(name), {})[key] = value.clone()
        return {**optimizer.state_dict(), "state": nested}

    @staticmethod
    def _flat(optimizer: torch.optim.Optimizer, names: list[str]) -> dict[str, torch.Tensor]:
        return {
            f"{names[index]}/{key}": value
            for index, entries in optimizer.state_dict()["state"].items()
            for key, value in entries.items()
            if isinstance(value, torch.Tensor)
        }

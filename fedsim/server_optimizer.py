"""The server's step: torch's own optimizers as functions of values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedsim.config.schema import ServerConfig
from fedsim.tensors import Tensors, as_float32_, check_same_layout, l2_norm, threads_by_size

_OPTIMIZERS: dict[str, Callable[[list[torch.Tensor], float], torch.optim.Optimizer]] = {
    "sgd": lambda values, rate: torch.optim.SGD(values, lr=rate),
    "adam": lambda values, rate: torch.optim.Adam(values, lr=rate, fused=True),  # one pass
    "adafactor": lambda values, rate: torch.optim.Adafactor(values, lr=rate),
}


@dataclass(frozen=True)
class ServerOptimizer:
    """SGD, Adam or Adafactor with a constant learning rate (Charles et al. 2024, App. F).

    The released estimate is the gradient. For local SGD it is the mean of θ_server − θ_local,
    so that SGD with learning rate 1 is McMahan et al.'s averaging. Where it is longer than
    `max_gradient_norm` it is scaled down to that: of a mean over a batch, batch clipping (Pascanu
    et al. 2013), which bounds no single user's share and gives no guarantee.

    Another optimizer is a subclass that overrides `torch_optimizer`, under an entry point of the
    group `fedsim.server_optimizers`: `docs/how-to/own-parts.md`. Its state has tensors alone. It
    sees releases, which are paid for, so no ε rests on it.
    """

    name: str
    learning_rate: float
    max_gradient_norm: float | None = None
    options: ClassVar[type[ServerConfig]] = ServerConfig

    @classmethod
    def build(cls, options: ServerConfig) -> ServerOptimizer:
        """Return the optimizer of a config; `options` is the table `[server]`."""
        return cls(options.optimizer, options.learning_rate, options.max_gradient_norm)

    def torch_optimizer(self, values: list[torch.Tensor]) -> torch.optim.Optimizer:
        """Return a new optimizer of `values`, without state."""
        return _OPTIMIZERS[self.name](values, self.learning_rate)

    def step(
        self,
        parameters: Tensors,
        gradient: dict[str, torch.Tensor],
        state: Tensors,
        *,
        keep: bool = True,
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Return the next parameters and optimizer state; parameters stay as they are.

        Args:
            parameters: float32 tensors.
            gradient: same layout, any float dtype. Used up: the dict is empty afterwards, so that a
                tensor's memory is free before the next tensor needs some.
            state: flat, "parameter/key" → tensor; empty before the first step.
            keep: whether the state and the gradient's tensors stay as they are. Without, these are
                overwritten, and the state's memory becomes the next one's, for Adam two copies of
                the parameters; the given dict is empty afterwards.

        Examples:
            >>> start = {"w": torch.tensor([1.0])}
            >>> after, _ = ServerOptimizer("sgd", 0.5).step(start, {"w": torch.tensor([0.2])}, {})
            >>> round(after["w"].item(), 6), start["w"].item()
            (0.9, 1.0)
        """
        check_same_layout(parameters, gradient)
        factor = self._factor(gradient)
        before: dict[str, dict[str, torch.Tensor]] = {name: {} for name in parameters}
        for path, value in state.items():
            name, _, key = path.rpartition("/")
            before[name][key] = value
        if not keep and isinstance(state, dict):
            state.clear()
        moved: dict[str, torch.Tensor] = {}
        after: dict[str, torch.Tensor] = {}
        with threads_by_size(parameters):
            for name, value in parameters.items():
                moved[name] = entry = value.detach().clone()
                given = gradient.pop(name)
                given = given if factor == 1.0 else given * factor
                entry.grad = given.to(entry.dtype) if keep else as_float32_(given)
                del given
                optimizer = self.torch_optimizer([entry])
                if before[name]:
                    # What `load_state_dict` does, without its second copy.
                    optimizer.state[entry] = {
                        key: old.to(entry.device, copy=keep) for key, old in before[name].items()
                    }
                optimizer.step()
                entry.grad = None
                after |= {f"{name}/{key}": new for key, new in optimizer.state[entry].items()}
        return moved, after

    def _factor(self, gradient: Tensors) -> float:
        norm = math.inf if self.max_gradient_norm is None else self.max_gradient_norm
        length = 0.0 if math.isinf(norm) else l2_norm(gradient)
        return 1.0 if length <= norm else norm / length

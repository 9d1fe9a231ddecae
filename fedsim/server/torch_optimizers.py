"""torch's optimizers by name, and their config keys: the optimizers' own arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache, reduce
from operator import or_
from types import GenericAlias
from typing import Any, Self, get_args, get_origin

import torch
from pydantic import ConfigDict, create_model, model_validator
from torch.optim import LBFGS, Optimizer, SparseAdam

from fedsim.config.schema import ServerConfig
from fedsim.server.debiased_adam import DebiasedAdam

KINDS: dict[str, Callable[..., Optimizer]] = {
    kind.__name__.lower(): kind
    for kind in vars(torch.optim).values()
    if isinstance(kind, type)
    and issubclass(kind, Optimizer)
    and kind not in (Optimizer, LBFGS, SparseAdam)  # these need closures or sparse gradients
}
"""All optimizers of `torch.optim` that step from one dense gradient, by name in lower case."""

_DEFAULTS: dict[str, dict[str, Any]] = {  # defaults that differ from torch's
    "adam": {"fused": True},  # one pass over memory
    "adamw": {"fused": True},
    "muon": {"adjust_lr_fn": "match_rms_adamw"},  # matches AdamW's steps on the vectors
}
_NOT_KEYS = {"params", "lr", "foreach", "maximize", "capturable", "differentiable"}


def torch_optimizer(
    name: str,
    values: list[torch.Tensor],
    rate: float,
    keys: Mapping[str, Any],
    *,
    debias: bool = False,
) -> Optimizer:
    """Return a new optimizer; with "muon", AdamW if the values are not matrices.

    Args:
        name: one of `KINDS`.
        values: the parameters; for "muon" either all matrices, or none.
        rate: learning rate.
        keys: other arguments; left-out ones have torch's defaults.
        debias: subtract the noise variance from the second moment of "adam" or "adamw":
            `DebiasedAdam`.

    Raises:
        ValueError: torch refuses an argument.
    """
    if name == "muon" and any(value.ndim != 2 for value in values):
        name, keys = "adamw", {key: keys[key] for key in ("weight_decay",) if key in keys}
    if not debias:
        return KINDS[name](values, lr=rate, **{**_DEFAULTS.get(name, {}), **keys})
    if keys.get("amsgrad"):
        raise ValueError("debias = True: does not support amsgrad")
    if name == "adamw":
        keys = {"weight_decay": 0.01, **keys, "decoupled_weight_decay": True}
    return DebiasedAdam(values, lr=rate, **keys)


def keys_of(options: ServerConfig) -> dict[str, Any]:
    """Return the keys of `[server]` that are the optimizer's own arguments."""
    own = type(options).model_fields.keys() - ServerConfig.model_fields.keys()
    return {key: value for key in sorted(own) if (value := getattr(options, key)) is not None}


@cache
def torch_options(name: str) -> type[ServerConfig]:
    """Return the config class of an optimizer: the keys of `[server]` and torch's arguments.

    "auto" has Adam's arguments.
    """
    arguments = inspect.signature(KINDS[_torch_name(name)], eval_str=True).parameters.values()
    keys: dict[str, Any] = {
        argument.name: (_without_tensors(argument.annotation) | None, None)
        for argument in arguments
        if argument.name not in _NOT_KEYS
    }
    return create_model(f"{name}_config", __base__=_TorchConfig, **keys)


class _TorchConfig(ServerConfig):
    model_config = ConfigDict(allow_inf_nan=False)

    @model_validator(mode="after")
    def _takes_a_step(self) -> Self:
        """Refuse arguments that torch refuses; torch checks some values only in the first step."""
        if self.optimizer == "rprop" and self.schedule is not None:
            raise ValueError(
                'optimizer = "rprop" with a schedule: rprop adapts its own step sizes; remove one'
            )
        if (rate := self.learning_rate) is None or not (keys := keys_of(self)):
            return self
        value = torch.zeros(2, 2)
        value.grad = torch.ones(2, 2)
        try:
            name = _torch_name(self.optimizer)
            torch_optimizer(name, [value], rate, keys, debias=self.debias).step()
        except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
            given = "".join(f", {key} = {value!r}" for key, value in keys.items())
            raise ValueError(f"optimizer = {self.optimizer!r}{given}: {error}") from None
        return self


def _torch_name(name: str) -> str:
    return "adam" if name == "auto" else name


def _without_tensors(kind: Any) -> Any:  # noqa: ANN401  (any annotation)
    """Return a type without `Tensor`, which torch accepts in place of numbers."""
    inner = tuple(_without_tensors(one) for one in get_args(kind) if one is not torch.Tensor)
    if not inner:
        return kind
    return GenericAlias(tuple, inner) if get_origin(kind) is tuple else reduce(or_, inner)

"""torch's optimizers by name, and the keys that a config may give each: its own arguments."""

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
    and kind not in (Optimizer, LBFGS, SparseAdam)  # of closures, and of sparse gradients
}
"""By name in lower case: all of `torch.optim` that step from one dense gradient."""

_DEFAULTS: dict[str, dict[str, Any]] = {  # where they are not torch's
    "adam": {"fused": True},  # one pass over memory
    "adamw": {"fused": True},
    "muon": {"adjust_lr_fn": "match_rms_adamw"},  # vectors have the same learning rate by AdamW
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
    """Return a new optimizer; Muon takes matrices, and AdamW what is none.

    Args:
        name: one of `KINDS`.
        values: what it steps; for Muon all of them matrices, or none.
        rate: its learning rate.
        keys: its other arguments; torch's own defaults where they are left out.
        debias: free the second moment of "adam" or "adamw" of the noise: `DebiasedAdam`.

    Raises:
        ValueError: what torch refuses.
    """
    if name == "muon" and any(value.ndim != 2 for value in values):
        name, keys = "adamw", {key: keys[key] for key in ("weight_decay",) if key in keys}
    if not debias:
        return KINDS[name](values, lr=rate, **{**_DEFAULTS.get(name, {}), **keys})
    if keys.get("amsgrad"):
        raise ValueError("debias = True: takes no amsgrad")
    if name == "adamw":
        keys = {"weight_decay": 0.01, **keys, "decoupled_weight_decay": True}
    return DebiasedAdam(values, lr=rate, **keys)


def keys_of(options: ServerConfig) -> dict[str, Any]:
    """Return the keys of a table `[server]` that are an optimizer's own arguments."""
    own = type(options).model_fields.keys() - ServerConfig.model_fields.keys()
    return {key: value for key in sorted(own) if (value := getattr(options, key)) is not None}


@cache
def torch_options(name: str) -> type[ServerConfig]:
    """Return the class of the keys of an optimizer: of `[server]`, and torch's arguments.

    Those of "auto" are Adam's.
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
        """Refuse what torch refuses, which for some values it does in the first step alone."""
        if self.optimizer == "rprop" and self.schedule is not None:
            raise ValueError(
                'optimizer = "rprop" with a schedule: it finds its step sizes by itself; remove one'
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
    """Return a type without the tensors that torch takes in place of numbers."""
    inner = tuple(_without_tensors(one) for one in get_args(kind) if one is not torch.Tensor)
    if not inner:
        return kind
    return GenericAlias(tuple, inner) if get_origin(kind) is tuple else reduce(or_, inner)

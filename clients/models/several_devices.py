"""A network on several GPUs: its blocks one after the other, all else on the first of them.

accelerate's `dispatch_model` will not do: it takes the place of each block's `forward`, as
`checkpointing.py` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from fedsim.errors import ConfigError


def place_(module: nn.Module, blocks: Sequence[nn.Module], devices: Sequence[str]) -> None:
    """Move a network to devices; about equally many blocks to each.

    Raises:
        ConfigError: more than one device, and fewer blocks.
    """
    if len(devices) > max(1, len(blocks)):
        raise ConfigError(
            f"executor.gpus_per_worker: a network of {len(blocks)} blocks cannot be held by "
            f"{len(devices)} GPUs; give fewer"
        )
    module.to(devices[0])
    if len(devices) > 1:
        for number, block in enumerate(blocks):
            block.to(devices[number * len(devices) // len(blocks)])


def follow_(blocks: Sequence[nn.Module], devices: Sequence[str]) -> None:
    """Let what a block is called with follow it to its device, and the last one's output return."""
    for number, block in enumerate(blocks):
        device = devices[number * len(devices) // len(blocks)]
        block.register_forward_pre_hook(partial(_inputs, device), with_kwargs=True)
    blocks[-1].register_forward_hook(partial(_output, devices[0]))


def _inputs(device: str, _block: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:  # noqa: ANN401
    return _sent(device, (args, named))


def _output(device: str, _block: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:  # noqa: ANN401
    return _sent(device, output)


def _sent(device: str, values: Any) -> Any:  # noqa: ANN401
    return tree_map_only(torch.Tensor, lambda value: value.to(device), values)

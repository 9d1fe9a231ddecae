"""Split a network over several GPUs: consecutive blocks per GPU, the rest on the first GPU.

accelerate's `dispatch_model` does not work here: it replaces each block's `forward`, and so does
`checkpointing.py`.
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
    """Move a network to devices, with about the same number of blocks on each.

    Raises:
        ConfigError: there are fewer blocks than devices, and more than one device.
    """
    if len(devices) > max(1, len(blocks)):
        raise ConfigError(
            f"executor.gpus_per_worker: a network of {len(blocks)} blocks cannot be split over "
            f"{len(devices)} GPUs; give fewer"
        )
    module.to(devices[0])
    if len(devices) > 1:
        for number, block in enumerate(blocks):
            block.to(devices[number * len(devices) // len(blocks)])


def follow_(blocks: Sequence[nn.Module], devices: Sequence[str]) -> None:
    """Hook blocks to move inputs to their device, and the last output to the first device."""
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

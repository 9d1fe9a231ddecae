"""A frozen base model in 8 or 4 bits: linear layers unpack their weights for each product.

Only weights are rounded, not activations, so a row's result does not depend on other rows.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

from fedsim.config import ModelConfig, Quantisation
from fedsim.errors import ConfigError
from fedsim.utils.terminal import quietly

_BLOCK = 64  # numbers that share a scale, as in QLoRA (Dettmers et al. 2023, arXiv:2305.14314)


class QuantisedLinear(nn.Module):
    """A frozen linear layer with a rounded weight; gradients are exact for that weight.

    Attributes:
        packed: the weight's codes, uint8.
        scales: the largest absolute value of each block, float32.
    """

    packed: torch.Tensor
    scales: torch.Tensor

    def __init__(self, layer: nn.Linear | Conv1D, kind: Quantisation) -> None:
        """Round the weight of `layer`, on the CPU: a GPU may round ties differently."""
        super().__init__()
        weight = layer.weight.detach().T if isinstance(layer, Conv1D) else layer.weight.detach()
        self.kind, self.shape, self.bias = kind, weight.shape, layer.bias
        numbers, operations = weight.float().flatten(), torch.ops.bitsandbytes
        # One block per row: on a CPU bitsandbytes misreads rows of a partial number of blocks.
        rows = F.pad(numbers, (0, -len(numbers) % _BLOCK)).view(-1, _BLOCK)
        if kind == "nf4":
            packed, scales = operations.quantize_4bit(rows, _BLOCK, kind, torch.uint8)
        else:
            packed, scales = operations.quantize_blockwise(rows, _codes(rows.device), _BLOCK)
        self.register_buffer("packed", packed)
        self.register_buffer("scales", scales)

    def unpacked(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the rounded weight: (outputs, inputs)."""
        operations = torch.ops.bitsandbytes
        given, size = (self.packed, self.scales), (len(self.scales), _BLOCK)
        if self.kind == "nf4":
            rows = operations.dequantize_4bit(*given, _BLOCK, self.kind, size, dtype)
        else:
            rows = operations.dequantize_blockwise(
                *given, _codes(self.packed.device), _BLOCK, dtype
            )
        return torch.Tensor(rows).flatten()[: self.shape.numel()].view(self.shape)

    @property
    def weight(self) -> torch.Tensor:
        """The rounded weight, for networks that read it."""
        return self.unpacked(torch.float32)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 (nn.Linear's own name)
        """Return the outputs of a linear layer with the rounded weight."""
        device = input.device.type
        if torch.is_autocast_enabled(device):
            input = input.to(torch.get_autocast_dtype(device))  # noqa: A001
        output = torch.Tensor(_Product.apply(input, self))  # type: ignore[no-untyped-call]
        return output if self.bias is None else output + self.bias.to(output.dtype)

    def extra_repr(self) -> str:
        """Return torch's printed description of the layer; a run's identity depends on it."""
        return f"{self.shape[1]}, {self.shape[0]}, bias={self.bias is not None}, kind={self.kind}"


class _Product(torch.autograd.Function):
    """x·Wᵀ; keeps the packed weight for the backward pass, not the unpacked one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(input: torch.Tensor, layer: QuantisedLinear) -> torch.Tensor:  # noqa: A002
        return F.linear(input, layer.unpacked(input.dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ANN401
        ctx.layer = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        return gradient @ ctx.layer.unpacked(gradient.dtype), None


def quantise_(module: nn.Module, config: ModelConfig) -> None:
    """Quantise the linear layers of a frozen network to `config.quantisation`, in place.

    Not quantised: adapters, the output layer, weights that two modules share, and weights that are
    not finite, which are refused later. All other parameters become float32.

    Raises:
        ConfigError: bitsandbytes is not installed, or the network has no such layer.
    """
    kind = config.quantisation
    assert kind is not None  # noqa: S101 (the caller asks)
    try:
        with quietly():
            import bitsandbytes  # noqa: F401, PLC0415 (slow, and optional)
    except ImportError as error:
        raise ConfigError(
            f"model.quantisation = {kind!r}: {error}; pip install 'fedsim-dp[quantisation]'"
        ) from None
    places = Counter(id(value) for _, value in module.named_parameters(remove_duplicate=False))
    layers = [
        (name, part)
        for name, part in module.named_modules()
        if type(part) in (nn.Linear, Conv1D)  # the output layer is an `AlignedLinear`
        and ".lora_" not in name
        and places[id(part.weight)] == 1
        and bool(part.weight.isfinite().all())
    ]
    if not layers:
        raise ConfigError(
            f"model.quantisation = {kind!r}: the network of {config.name_or_path!r} has no linear "
            "layers besides its output layer; leave this key out"
        )
    for name, part in layers:
        above, _, own = name.rpartition(".")
        setattr(module.get_submodule(above), own, QuantisedLinear(part, kind))
    module.float()


def _codes(device: torch.device) -> torch.Tensor:
    """Return the values of the 256 codes of 8 bits, in units of a block's scale."""
    return (torch.arange(256, device=device) - 128).clamp(min=-127) / 127

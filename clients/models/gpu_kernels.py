"""Keep a GPU busy: memory layouts for tensor cores, and asynchronous copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from fedsim.clients.models.mixed_precision import NarrowLinear

if TYPE_CHECKING:  # the import takes a second; workers that only sum do without
    from transformers import PreTrainedModel

# Kernels for tensor cores read 16 bytes at once: eight bfloat16 numbers. For rows of other sizes,
# such as GPT-2's 50,257 words, an H100 uses older kernels that are several times slower.
_NUMBERS = 8


class AlignedLinear(NarrowLinear):
    """A linear layer that pads its outputs for tensor cores, in bfloat16 on a GPU."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 (nn.Linear's own name)
        """Return the outputs of `nn.Linear`."""
        if input.is_cuda and torch.is_autocast_enabled("cuda") and self.out_features % _NUMBERS:
            return self.padded(input, torch.get_autocast_dtype("cuda"))
        return super().forward(input)

    def padded(self, input: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:  # noqa: A002
        """Return the outputs in `dtype`, as a view of padded outputs."""
        missing = -self.out_features % _NUMBERS
        weight = F.pad(self.weight.to(dtype), (0, 0, 0, missing))
        bias = None if self.bias is None else F.pad(self.bias.to(dtype), (0, missing))
        return F.linear(input.to(dtype), weight, bias)[..., : self.out_features]


def align_words(module: PreTrainedModel) -> None:
    """Make the layer that scores words an `AlignedLinear`, in place."""
    words = module.get_output_embeddings()  # type: ignore[no-untyped-call]
    if type(words) is nn.Linear:
        words.__class__ = AlignedLinear


def aligned_room(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised tensor like `like`, with rows that tensor cores can read.

    Up to seven unused numbers lie between rows. Without them, `aligned` would have to copy, and the
    copy of a transposed side takes far longer than the product.

    Args:
        like: (..., size).
        dtype: type of the result.
    """
    size = like.shape[-1]
    room = like.new_empty(*like.shape[:-1], size + -size % _NUMBERS, dtype=dtype)
    return room[..., :size]


def sent(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a CPU tensor on a device; the copy to a GPU is asynchronous.

    With a synchronous copy, the host would wait for all queued work of the GPU, and then the GPU
    for the host.
    """
    if device.type != "cuda":
        return value.to(device)
    return value.pin_memory().to(device, non_blocking=True)


def aligned(side: torch.Tensor) -> torch.Tensor:
    """Return one side of a product in a layout that tensor cores can read, copied if necessary.

    Args:
        side: (..., rows, columns), contiguous in one of the last two dimensions.
    """
    step = max(side.stride()[-2:])
    return side if step % _NUMBERS == 0 else side.contiguous()


def readable(side: torch.Tensor) -> list[slice]:
    """Return the rows of an `aligned` side as one or two slices, for one product each.

    In a transposed side, tensor cores read eight rows at once. If the number of rows is no multiple
    of eight, an undivided product would use an older kernel, five times slower.
    """
    rows = side.shape[-2]
    whole = rows - rows % _NUMBERS
    if side.stride()[-1] == 1 or whole in (0, rows):
        return [slice(rows)]
    return [slice(whole), slice(whole, rows)]

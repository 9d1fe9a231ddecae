"""What keeps a GPU busy: numbers laid out for tensor cores, copies that nobody waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from fedsim.clients.models.mixed_precision import NarrowLinear

if TYPE_CHECKING:  # which takes a second, and a worker that only sums needs none of it
    from transformers import PreTrainedModel

# Kernels of tensor cores read 16 bytes at once: eight numbers of bfloat16. For rows of another
# size, as of GPT-2's 50,257 words, an H100 takes older ones that are several times slower.
_NUMBERS = 8


class AlignedLinear(NarrowLinear):
    """A linear layer whose outputs are computed with some more, in bfloat16 on a GPU."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 (nn.Linear's own name)
        """Return what `nn.Linear` does."""
        if input.is_cuda and torch.is_autocast_enabled("cuda") and self.out_features % _NUMBERS:
            return self.padded(input, torch.get_autocast_dtype("cuda"))
        return super().forward(input)

    def padded(self, input: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:  # noqa: A002
        """Return the outputs as a part of more, of weights in another type."""
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
    """Return uninitialised room of a shape and device, whose rows tensor cores can read.

    Between rows it has up to seven numbers that are not its own. Else `aligned` would have to make
    a copy, and of a side that is transposed it takes a kernel far slower than the product.

    Args:
        like: (..., size).
        dtype: of the room.
    """
    size = like.shape[-1]
    room = like.new_empty(*like.shape[:-1], size + -size % _NUMBERS, dtype=dtype)
    return room[..., :size]


def sent(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a CPU's tensor on a device; a GPU gets it in its turn, and the host goes on.

    Else the host would wait until all that the GPU has to do is done, and the GPU then for it.
    """
    if device.type != "cuda":
        return value.to(device)
    return value.pin_memory().to(device, non_blocking=True)


def aligned(side: torch.Tensor) -> torch.Tensor:
    """Return one side of a product so that tensor cores can read it, copied if need be.

    Args:
        side: (..., rows, columns), of which one of the two last sizes is contiguous.
    """
    step = max(side.stride()[-2:])
    return side if step % _NUMBERS == 0 else side.contiguous()


def readable(side: torch.Tensor) -> list[slice]:
    """Return the rows of an `aligned` side in one or two parts that products are to be made of.

    Where rows stand side by side in memory, as of a side that is transposed, tensor cores read
    eight at once: with a rest, all of them would be read by an older kernel, five times slower.
    """
    rows = side.shape[-2]
    whole = rows - rows % _NUMBERS
    if side.stride()[-1] == 1 or whole in (0, rows):
        return [slice(rows)]
    return [slice(whole), slice(whole, rows)]

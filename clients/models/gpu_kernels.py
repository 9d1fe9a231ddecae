"""Faster GPU kernels: scores of a vocabulary whose size tensor cores cannot take as it is."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

# Kernels of tensor cores read 16 bytes at once: eight numbers of bfloat16. For rows of another
# size, as of GPT-2's 50,257 words, an H100 takes older ones that are several times slower.
_NUMBERS = 8


class AlignedLinear(nn.Linear):
    """A linear layer whose outputs are computed with some more, in bfloat16 on a GPU."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 (nn.Linear's own name)
        """Return what `nn.Linear` does."""
        if input.is_cuda and torch.is_autocast_enabled("cuda") and self.out_features % _NUMBERS:
            return self.padded(input, torch.get_autocast_dtype("cuda"))
        return super().forward(input)

    def _get_name(self) -> str:
        # As torch prints it: a run's draws go by the printed layers, and this is the same layer.
        return "Linear"

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


def aligned(side: torch.Tensor) -> torch.Tensor:
    """Return one side of a product so that tensor cores can read it, copied if need be.

    Args:
        side: (..., rows, columns), of which one of the two last sizes is contiguous.
    """
    step = max(side.stride()[-2:])
    return side if step % _NUMBERS == 0 else side.contiguous()

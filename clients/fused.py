"""Torch's fused kernels in the place of what transformers spells out in single operations."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel
from transformers.activations import NewGELUActivation


def use_fused_kernels(module: PreTrainedModel) -> None:
    """Change `module` in place; it computes what it computed before, up to rounding.

    GPT-2's GELU becomes one kernel instead of eight passes over the widest activations.
    Attention becomes torch's `scaled_dot_product_attention`, where the architecture can have it:
    torch chooses the backend by device, type and shape.
    """
    for part in module.modules():
        for name, child in part.named_children():
            if type(child) is NewGELUActivation:
                setattr(part, name, nn.GELU(approximate="tanh"))
    if module._supports_sdpa:
        module.set_attn_implementation("sdpa")


def attention_backends() -> AbstractContextManager[None]:
    """Let attention be plain products under `torch.func`; elsewhere torch chooses.

    Not all of torch's fused kernels have a batching rule, and `vmap` over one that has none is a
    loop with a warning.
    """
    transformed = torch._C._functorch.maybe_current_level() is not None
    return sdpa_kernel(SDPBackend.MATH) if transformed else nullcontext()

"""Torch's fused kernels in the place of what transformers spells out in single operations."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel
from transformers.activations import NewGELUActivation


def fuse_activations(module: PreTrainedModel) -> None:
    """Make GPT-2's GELU one kernel instead of eight passes over the widest activations.

    Changes `module` in place; it computes what it computed before, up to rounding. Attention is
    left alone: see `clients.transformers_model.open_pretrained`.
    """
    for part in module.modules():
        for name, child in part.named_children():
            if type(child) is NewGELUActivation:
                setattr(part, name, nn.GELU(approximate="tanh"))

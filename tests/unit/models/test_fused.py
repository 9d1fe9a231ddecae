"""GPT-2's activation as one kernel."""

from __future__ import annotations

import copy

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.activations import NewGELUActivation

from fedsim.clients.models.cpu_kernels import fuse_activations


def test_it_computes_what_it_computed_before_without_the_slow_module() -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=30, n_positions=8, n_embd=8, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2
    )
    before = GPT2LMHeadModel(config).eval().double()  # type: ignore[no-untyped-call]
    after = copy.deepcopy(before)
    fuse_activations(after)
    tokens = torch.arange(16).view(2, 8)
    torch.testing.assert_close(after(tokens).logits, before(tokens).logits, rtol=1e-12, atol=1e-12)
    kinds = [type(part) for part in after.modules()]
    assert NewGELUActivation not in kinds
    assert kinds.count(nn.GELU) == 2

"""Measure the peak memory of training steps in plain PyTorch.

`python -m fedsim.experiments.benchmarks.server.plain_step FOLDER 8` takes two steps of the network
in a folder, with adapters of rank 8 (0: trains all parameters), and prints the peak bytes.
"""

from __future__ import annotations

import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from fedsim.utils.machine import peak_memory_bytes

_SEQUENCES, _LENGTH = 16, 64
_STEPS = 2  # the first step has no moments


def peak_of(folder: str, rank: int) -> int:
    """Return this process's peak over two AdamW steps of a plain training script."""
    network = AutoModelForCausalLM.from_pretrained(folder)
    if rank:
        network = get_peft_model(network, LoraConfig(task_type="CAUSAL_LM", r=rank))
    network.train()
    moving = [value for value in network.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(moving, lr=1e-4)
    generator = torch.Generator().manual_seed(0)
    size = (_SEQUENCES, _LENGTH)
    tokens = torch.randint(network.config.vocab_size, size, generator=generator)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        network(tokens, labels=tokens).loss.backward()
        optimizer.step()
    return peak_memory_bytes()


if __name__ == "__main__":
    sys.stdout.write(f"{peak_of(sys.argv[1], int(sys.argv[2]))}\n")

"""The benchmark's networks in common implementations: transformers' GPT-2, and `nn.LSTM`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

Tensors = dict[str, torch.Tensor]


def load(path: str) -> tuple[dict[str, Any], Tensors]:
    """Return the exported config and weights."""
    exported = torch.load(path, weights_only=True)
    return exported["config"], exported["state"]


def mean_losses(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return each sequence's mean loss over its tokens except the first, (sequences,)."""
    flat = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return flat.view(len(tokens), -1).mean(dim=1)


class Gpt(nn.Module):
    """GPT-2 of transformers, with its input embeddings as output layer."""

    def __init__(self, config: dict[str, Any], state: Tensors) -> None:
        super().__init__()
        self.network = GPT2LMHeadModel(GPT2Config(**config))
        self.network.load_state_dict(state, strict=False)  # a tied tensor has only one of its names
        self.network.tie_weights()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits (sequences, length, vocabulary)."""
        logits: torch.Tensor = self.network(tokens, use_cache=False).logits
        return logits

    def exported(self, values: Tensors) -> Tensors:
        """Return tensors by the names of the exported weights."""
        return {name.removeprefix("network."): value for name, value in values.items()}


# The gates of nn.LSTM have the order write, forget, candidate, read; exported weights have the last
# two swapped.
_GATES = (0, 1, 3, 2)


def _reordered(value: torch.Tensor) -> torch.Tensor:
    parts = value.chunk(4)
    return torch.cat([parts[gate] for gate in _GATES])


class Lstm(nn.Module):
    """McMahan et al. 2018, App. B, on torch's fused LSTM.

    torch's second bias is redundant: it stays zero and frozen, so the norm of an update counts one
    bias.
    """

    def __init__(self, config: dict[str, Any], state: Tensors) -> None:
        super().__init__()
        width, hidden = config["embedding_size"], config["hidden_size"]
        self.embedding = nn.Parameter(state["embedding.weight"].clone())
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.output_embedding = nn.Linear(hidden, width)
        with torch.no_grad():
            for name, value in self._trained().items():
                theirs = state[_LSTM_NAMES[name]]
                value.copy_(_reordered(theirs) if name.startswith("lstm.") else theirs)
            second = self.lstm.get_parameter("bias_hh_l0")
            second.requires_grad_(False).zero_()

    def _trained(self) -> dict[str, nn.Parameter]:
        return {name: value for name, value in self.named_parameters() if name in _LSTM_NAMES}

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits (sequences, length, vocabulary)."""
        words = F.normalize(self.embedding, dim=-1)
        states, _ = self.lstm(F.embedding(tokens, words))
        logits: torch.Tensor = self.output_embedding(states) @ words.T
        return logits

    def exported(self, values: Tensors) -> Tensors:
        """Return tensors by the names and in the gate order of the exported weights."""
        return {
            _LSTM_NAMES[name]: _reordered(value) if name.startswith("lstm.") else value
            for name, value in values.items()
        }


_LSTM_NAMES = {
    "embedding": "embedding.weight",
    "lstm.weight_ih_l0": "lstm.input_to_gates.weight",
    "lstm.bias_ih_l0": "lstm.input_to_gates.bias",
    "lstm.weight_hh_l0": "lstm.hidden_to_gates.weight",
    "output_embedding.weight": "output_embedding.weight",
    "output_embedding.bias": "output_embedding.bias",
}


def build(path: str) -> Gpt | Lstm:
    """Return the exported network."""
    config, state = load(path)
    return Lstm(config, state) if "hidden_size" in config else Gpt(config, state)

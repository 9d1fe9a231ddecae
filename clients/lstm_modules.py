"""The word-level LSTM of McMahan et al. 2018, App. B, as a transformers model.

Importing this module registers the model type "mcmahan-lstm", so that a saved folder opens with
`transformers.AutoModelForCausalLM.from_pretrained`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    initialization,
)
from transformers.modeling_outputs import CausalLMOutput


class McMahanLstmConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """Sizes; the defaults are the paper's (1.35 M parameters)."""

    model_type = "mcmahan-lstm"

    vocab_size: int = 10_000
    embedding_size: int = 96
    hidden_size: int = 256
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = None


class PlainLstm(nn.Module):
    """One LSTM layer in plain operations: (batch, length, input) to (batch, length, hidden).

    `torch.nn.LSTM` keeps a second list of its weights that a functional call need not reach,
    and its kernel has no batching rule for `torch.func.vmap`. Two linear layers and a loop over
    time have neither trouble, cost about the same on a CPU, and show per-example gradient
    engines nothing but linear layers.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.input_to_gates = nn.Linear(input_size, 4 * hidden_size)
        # One bias is enough: a second would be the same number under another name.
        self.hidden_to_gates = nn.Linear(hidden_size, 4 * hidden_size, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the hidden state after each position, starting from zeros."""
        from_inputs = self.input_to_gates(inputs)
        hidden = cell = from_inputs.new_zeros(inputs.shape[0], self.hidden_size)
        states = []
        for from_input in from_inputs.unbind(dim=1):
            gates = from_input + self.hidden_to_gates(hidden)
            open_gates, candidate = gates.split([3 * self.hidden_size, self.hidden_size], dim=-1)
            write, forget, read = torch.sigmoid(open_gates).chunk(3, dim=-1)
            cell = forget * cell + write * torch.tanh(candidate)
            hidden = read * torch.tanh(cell)
            states.append(hidden)
        return torch.stack(states, dim=1)


class McMahanLstmForCausalLM(PreTrainedModel):  # type: ignore[no-untyped-call]
    """Embedding 96, LSTM 256, "output embedding" 96, scored against the same word embeddings.

    The paper keeps each word embedding at L2 norm 1. Here the stored row may have any length
    and is divided by it on each use, so that an update is an unconstrained vector that can be
    clipped and noised like any other.
    """

    config_class = McMahanLstmConfig
    config: McMahanLstmConfig
    base_model_prefix = ""
    main_input_name = "input_ids"

    def __init__(self, config: McMahanLstmConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        self.lstm = PlainLstm(config.embedding_size, config.hidden_size)
        self.output_embedding = nn.Linear(config.hidden_size, config.embedding_size)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, input_ids: torch.Tensor, **unused: object) -> CausalLMOutput:
        """Return next-word logits, (batch, length, vocabulary), for ids (batch, length).

        Args:
            input_ids: int64 word ids.
            unused: what callers of transformers models pass, such as `use_cache`.
        """
        words = self.unit_embeddings()
        states = self.lstm(F.embedding(input_ids, words))
        return CausalLMOutput(logits=self.output_embedding(states) @ words.T)

    def unit_embeddings(self) -> torch.Tensor:
        """Return the word embeddings as they are used, (vocabulary, 96), each of L2 norm 1."""
        return F.normalize(self.embedding.weight, dim=-1)

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding, which is the output layer too."""
        return self.embedding

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            # Rows of length about 1: dividing by the length then leaves gradients their size.
            initialization.normal_(module.weight, std=module.embedding_dim**-0.5)
        elif isinstance(module, nn.Linear):
            initialization.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                initialization.zeros_(module.bias)


AutoConfig.register(McMahanLstmConfig.model_type, McMahanLstmConfig, exist_ok=True)
AutoModelForCausalLM.register(McMahanLstmConfig, McMahanLstmForCausalLM, exist_ok=True)

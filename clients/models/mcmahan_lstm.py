"""mcmahan-lstm: the word-level LSTM of DP-FedAvg (McMahan et al. 2018, App. B)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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

from fedsim.clients.models.lstm_recurrence import Recurrence
from fedsim.clients.models.pretraining import Schedule, describe_origin, pretrained
from fedsim.clients.models.tokenizers import word_tokenizer
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.config import ModelConfig

_IN_CACHE = 2**18  # float32 numbers: a megabyte
_SHORTEST = 1e-12  # minimum divisor of a row, as in `torch.nn.functional.normalize`


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
    """One LSTM layer: (batch, length, input) to (batch, length, hidden).

    `torch.nn.LSTM` keeps a second list of its weights, which a functional call may not replace. Its
    kernel also hides the gradients of the gates, which per-unit gradients need. This layer costs
    about the same on a CPU; the engine `vmap` does not support it.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_to_gates = nn.Linear(input_size, 4 * hidden_size)
        # One bias is enough: only the sum of two would matter.
        self.hidden_to_gates = Recurrence(hidden_size)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the hidden state after each position, starting from zeros."""
        states: torch.Tensor = self.hidden_to_gates(self.input_to_gates(inputs))
        return states


class _UnitRows(torch.autograd.Function):
    """`F.normalize` over rows, with a backward pass that makes few copies of the table.

    A row with a norm below 1e-12 is divided by 1e-12, and its gradient is only scaled.
    """

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        """Return the rows with norm 1."""
        inverse = inverse_norms(weight)
        rows = weight * inverse
        ctx.save_for_backward(rows, inverse)
        return rows

    @staticmethod
    def backward(ctx: Any, d_rows: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        """Return (g − ŵ·(ŵ·g))/r for a row of norm r with the gradient g of ŵ."""
        rows, inverse = ctx.saved_tensors
        # Not `vecdot`, which stores all products before summing them; tables are large.
        along = torch.bmm(d_rows[:, None, :], rows[:, :, None])[:, :, 0]
        turned = torch.addcmul(
            d_rows, torch.where(inverse < 1.0 / _SHORTEST, along, 0.0), rows, value=-1
        )
        return turned.mul_(inverse)


def unit_rows(weight: torch.Tensor) -> torch.Tensor:
    """Return the rows of (rows, width) with L2 norm 1; norms below 1e-12 count as 1e-12."""
    rows: torch.Tensor = _UnitRows.apply(weight)  # type: ignore[no-untyped-call]
    return rows


def inverse_norms(weight: torch.Tensor) -> torch.Tensor:
    """Return the inverse of the norms of (..., rows, width), (..., rows, 1); see `unit_rows`."""
    norms: torch.Tensor = weight.norm(dim=-1, keepdim=True)
    return norms.clamp_min(_SHORTEST).reciprocal()


class UnitScores(nn.Module):
    """A vector's product with every word's embedding, scaled to norm 1."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        # In a tuple, so the embedding is not registered (and saved) a second time.
        self._embedding = (embedding,)

    @property
    def embedding(self) -> nn.Embedding:
        """The embedding; its rows score the words."""
        return self._embedding[0]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return (..., vocabulary) scores."""
        return inputs @ unit_rows(self.embedding.weight).T


@dataclass(frozen=True, eq=False)
class NormalisedRows:
    """Map a gradient of the rows with norm 1 to the gradient of the stored rows.

    For a row w of norm r the gradient g of w/r becomes (g − w·(w·g)/r²)/r. For a row with a norm
    below 1e-12 it becomes g/1e-12.

    Attributes:
        rows: stored rows, (rows, width), or those of a stack of tables.
        inverse: `inverse_norms` of the rows.
    """

    rows: torch.Tensor
    inverse: torch.Tensor

    def __getitem__(self, part: int | slice) -> NormalisedRows:
        """Return the map for some rows, or for one table of a stack."""
        return NormalisedRows(self.rows[part], self.inverse[part])

    def __call__(self, gradient: torch.Tensor) -> None:
        """Change a gradient, (rows, width), in place."""
        rows, width = gradient.shape  # as many rows at once as fit in the cache
        size = rows if gradient.is_cuda else max(1, _IN_CACHE // width)
        parts = (torch.split(values, size) for values in (gradient, self.rows, self.inverse))
        for part, stored, inverse in zip(*parts, strict=True):
            squares = torch.where(inverse < 1.0 / _SHORTEST, inverse.square(), 0.0)  # 1/r²
            along = (part * stored).sum(dim=-1, keepdim=True).mul_(squares)  # (w·g)/r²
            part.addcmul_(stored, along, value=-1.0).mul_(inverse)


class McMahanLstmForCausalLM(PreTrainedModel):  # type: ignore[no-untyped-call]
    """Embedding 96, LSTM 256, "output embedding" 96, scored against the same word embeddings.

    The paper keeps each word embedding at L2 norm 1. Here the stored row may have any norm, and
    each use divides it by its norm. So an update is an unconstrained vector that can be clipped
    and noised like any other.
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
        self.scores = UnitScores(self.embedding)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, input_ids: torch.Tensor, **unused: object) -> CausalLMOutput:
        """Return next-word logits, (batch, length, vocabulary), for ids (batch, length).

        Args:
            input_ids: int64 word ids.
            unused: ignored arguments of transformers models, such as `use_cache`.
        """
        words = F.normalize(self.embedding(input_ids), dim=-1, eps=_SHORTEST)
        outputs = self.output_embedding(self.lstm(words))
        return CausalLMOutput(logits=self.scores(outputs))

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding, which is also the output layer."""
        return self.embedding

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            # Rows of norm about 1: dividing by the norm then keeps the size of gradients.
            initialization.normal_(module.weight, std=module.embedding_dim**-0.5)
        elif isinstance(module, nn.Linear):
            initialization.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                initialization.zeros_(module.bias)
        elif isinstance(module, Recurrence):
            initialization.normal_(module.weight, std=module.weight.shape[1] ** -0.5)


AutoConfig.register(McMahanLstmConfig.model_type, McMahanLstmConfig, exist_ok=True)
AutoModelForCausalLM.register(McMahanLstmConfig, McMahanLstmForCausalLM, exist_ok=True)


NAME = "mcmahan-lstm"
VOCABULARY_SIZE = 10_000
DEFAULT_STEPS = 220


def load(
    config: ModelConfig, *, seed: int = 0, sequence_length: int = 64, device: str = "cpu"
) -> TransformersModel:
    """Load mcmahan-lstm: 10,000 words, 1.35 M parameters.

    Its dictionary and its initial parameters come from public text alone, as in the paper. The
    first load computes them (a minute or two on a CPU); later loads read them from the cache.

    Args:
        config: model config; `pretraining_steps` = 0 gives random initial parameters.
        seed: seed of the run; it determines the initial adapters.
        sequence_length: maximum length of an example, in words; any length is allowed.
        device: device of the logits, in torch's notation.

    Raises:
        ConfigError: no parameter is trainable.
    """
    tokenizer = word_tokenizer(VOCABULARY_SIZE)
    network = McMahanLstmConfig(
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    steps = DEFAULT_STEPS if config.pretraining_steps is None else config.pretraining_steps
    schedule = Schedule(steps=steps, learning_rate=3e-3)
    return TransformersModel(
        pretrained(NAME, network, tokenizer, schedule),
        tokenizer,
        config,
        origin=describe_origin(schedule),
        seed=seed,
        sequence_length=sequence_length,
        device=device,
    )

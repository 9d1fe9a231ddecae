"""mcmahan-lstm: the word-level LSTM of DP-FedAvg (McMahan et al. 2018, App. B)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

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
_SHORTEST = 1e-12  # norm by which a row is divided at least, as in `torch.nn.functional.normalize`


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

    `torch.nn.LSTM` keeps a second list of its weights that a functional call need not reach, its
    kernel does not show the gradients of the gates, from which per-unit gradients are made. This
    layer costs about the same on a CPU; the engine `vmap` does not take it.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_to_gates = nn.Linear(input_size, 4 * hidden_size)
        # One bias is enough: a second would be the same number under another name.
        self.hidden_to_gates = Recurrence(hidden_size)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the hidden state after each position, starting from zeros."""
        states: torch.Tensor = self.hidden_to_gates(self.input_to_gates(inputs))
        return states


class _UnitRows(torch.autograd.Function):
    """`F.normalize` over rows, with a backward pass of few copies of the table.

    A row shorter than 1e-12 is divided by that, and its gradient is not turned.
    """

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ANN401
        """Return the rows at norm 1, and one over their norms, (rows, 1)."""
        inverse = 1.0 / weight.norm(dim=-1, keepdim=True).clamp_min(_SHORTEST)
        rows = weight * inverse
        ctx.mark_non_differentiable(inverse)
        ctx.save_for_backward(rows, inverse)
        return rows, inverse

    @staticmethod
    def backward(ctx: Any, d_rows: torch.Tensor, *_unused: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        """Return (g − ŵ·(ŵ·g))/r for a row of norm r with the gradient g of ŵ."""
        rows, inverse = ctx.saved_tensors
        # `vecdot` writes all products down before it adds them up; tables are large.
        along = torch.bmm(d_rows[:, None, :], rows[:, :, None])[:, :, 0]
        turned = torch.addcmul(
            d_rows, torch.where(inverse < 1.0 / _SHORTEST, along, 0.0), rows, value=-1
        )
        return turned.mul_(inverse)


class UnitRows(NamedTuple):
    """A table of which every row is divided by its L2 norm.

    Attributes:
        rows: (..., rows, width), each of norm 1.
        inverse: one over the norms, (..., rows, 1).
    """

    rows: torch.Tensor
    inverse: torch.Tensor


def unit_rows(weight: torch.Tensor) -> UnitRows:
    """Return the rows of (..., rows, width) at norm 1; a row under 1e-12 is divided by that."""
    return UnitRows(*_UnitRows.apply(weight))  # type: ignore[no-untyped-call]


class UnitScores(nn.Module):
    """A vector's product with every word's embedding, each at norm 1."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        # In a tuple: the embedding is not to be registered, and saved, a second time.
        self._embedding = (embedding,)

    @property
    def embedding(self) -> nn.Embedding:
        """The embedding whose rows score."""
        return self._embedding[0]

    def forward(self, inputs: torch.Tensor, words: UnitRows) -> torch.Tensor:
        """Return (..., vocabulary) scores; `words` are the embedding's `unit_rows`."""
        return inputs @ words.rows.T


@dataclass(frozen=True, eq=False)
class NormalisedRows:
    """The map from a gradient of rows at norm 1 to one of the rows that are stored.

    For a row w of norm r the gradient g of w/r becomes (g − w·(w·g)/r²)/r; that of a row under
    1e-12, which is divided by that, is not turned.

    Attributes:
        rows: as they are stored, (rows, width), or of a stack of tables.
        inverse: what they are multiplied by, see `UnitRows`.
    """

    rows: torch.Tensor
    inverse: torch.Tensor

    def __getitem__(self, part: int | slice) -> NormalisedRows:
        """Return the map for some rows, or for one table of a stack."""
        return NormalisedRows(self.rows[part], self.inverse[part])

    def __call__(self, gradient: torch.Tensor) -> None:
        """Change a gradient, (rows, width), in place."""
        rows, width = gradient.shape  # a processor takes as many rows as its cache holds
        size = rows if gradient.is_cuda else max(1, _IN_CACHE // width)
        parts = (gradient, self.rows, self.inverse, self._squares)
        for part, stored, inverse, squares in zip(
            *(torch.split(values, size) for values in parts), strict=True
        ):
            along = (part * stored).sum(dim=-1, keepdim=True).mul_(squares)  # (w·g)/r²
            part.addcmul_(stored, along, value=-1.0).mul_(inverse)

    @cached_property
    def _squares(self) -> torch.Tensor:
        """1/r², (rows, 1), and 0 for short rows."""
        return torch.where(self.inverse < 1.0 / _SHORTEST, self.inverse.square(), 0.0)


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
        self.scores = UnitScores(self.embedding)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, input_ids: torch.Tensor, **unused: object) -> CausalLMOutput:
        """Return next-word logits, (batch, length, vocabulary), for ids (batch, length).

        Args:
            input_ids: int64 word ids.
            unused: what callers of transformers models pass, such as `use_cache`.
        """
        words = F.normalize(self.embedding(input_ids), dim=-1, eps=_SHORTEST)
        outputs = self.output_embedding(self.lstm(words))
        return CausalLMOutput(logits=self.scores(outputs, unit_rows(self.embedding.weight)))

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

    Its dictionary and its starting point come from public text alone, as in the paper; the
    first load makes them (a minute or two on a CPU), later ones read them from the cache.

    Args:
        config: `pretraining_steps` may be 0 for a random start.
        seed: the run's seed; adapters start from it.
        sequence_length: the longest example, in words; any length will do.
        device: where logits are to be computed, in torch's spelling.

    Raises:
        ConfigError: nothing to train.
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

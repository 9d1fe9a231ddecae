"""LanguageModel: the interface of a network: parameters in, logits out.

`check_causal` tests the property that the guarantee needs. `fedsim` never imports a model. Packages
with models (such as `clients`) register a loader under the entry-point group `fedsim.models`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from fedsim.errors import ConfigError
from fedsim.tensors import Tensors, parameters_digest

_TOKENS = 8  # length of a made-up text
NUDGE, _PERIOD = 0.05, 8191
_LEAKS = (
    "{field}: its logits depend on {what}. So one user would change the gradients of others, and "
    "no clip bounds that change"
)
# Tolerances relative to the largest logit: between passes of one shape, and of two shapes.
_EQUAL, _ROUNDING = 1e-5, 1e-4


class LanguageModel(Protocol):
    """A causal language model as a value.

    Attributes:
        name: the configured name, such as "tiny-gpt" or a folder.
        tokenizer_fingerprint: SHA-256 (hex) of the serialised tokenizer; stores are keyed by it.
        vocabulary_size: number of token ids.
        num_parameters: number of all parameters, including frozen ones.
        unknown_token_id: the id of words outside the vocabulary, which top-1 accuracy counts as
            wrong (McMahan et al. 2018, App. B); None if the vocabulary covers every text.
        origin: one sentence for the report, on the public data behind the initial weights and the
            vocabulary.
        device: torch device of the logits.
        encoder: the function that `encode` calls.
    """

    @property
    def name(self) -> str: ...
    @property
    def tokenizer_fingerprint(self) -> str: ...
    @property
    def vocabulary_size(self) -> int: ...
    @property
    def num_parameters(self) -> int: ...
    @property
    def unknown_token_id(self) -> int | None: ...
    @property
    def origin(self) -> str: ...
    @property
    def device(self) -> torch.device: ...

    @property
    def encoder(self) -> Callable[[Sequence[str]], list[list[int]]]: ...

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, with a begin and an end token; never truncated."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids; begin and end tokens are left out."""
        ...

    def initial_parameters(self) -> dict[str, torch.Tensor]:
        """Return copies of the trainable parameters, float32, on the CPU."""
        ...

    def logits(self, parameters: Tensors, tokens: torch.Tensor) -> torch.Tensor:
        """Return next-token logits, differentiable with respect to `parameters`.

        Args:
            parameters: one tensor per trainable name, on `device`.
            tokens: (batch, length) int64 on `device`, padded on the right with any valid id.
                The model is causal, so padding does not affect earlier positions.

        Returns:
            (batch, length, vocabulary_size) float32.
        """
        ...

    def save(self, parameters: Tensors, folder: Path) -> None:
        """Write a folder (safetensors) with exactly these parameters and the tokenizer.

        The run reads the folder back: with transformers, or with the loader that `fedsim_model` in
        its `config.json` names.
        """
        ...


class ChatModel(LanguageModel, Protocol):
    """A language model that also encodes conversations, for chat data."""

    def chat_encoder(
        self, loss_on: str, chat_template: str | None, field: str
    ) -> Callable[[Sequence[str]], list[npt.NDArray[np.int64]]]:
        """Return a function from conversations to tokens.

        A conversation is a JSON text (`fedsim.data.sources.conversations`). A token is its id, or
        -1 - id if the loss ignores it.

        Args:
            loss_on: tokens that count in the loss: "all", "assistant" or "completion".
            chat_template: a Jinja file; "tokenizer" or None for the tokenizer's template. With
                None, prompts and completions that are strings use no template.
            field: config key and value, for errors.

        Raises:
            ConfigError: there is no template, or it cannot be read.
        """
        ...


class AdapterModel(LanguageModel, Protocol):
    """A language model that may train an adapter only.

    Attributes:
        is_adapter: whether every trainable parameter belongs to an adapter.
    """

    @property
    def is_adapter(self) -> bool: ...

    def save_adapter(self, parameters: Tensors, folder: Path) -> None:
        """Write a folder for `peft.PeftModel.from_pretrained`."""
        ...


def module_of(model: LanguageModel) -> torch.nn.Module:
    """Return the network of a model, or an empty module if the model has no `module`."""
    module = getattr(model, "module", None)
    return module if isinstance(module, torch.nn.Module) else torch.nn.Module()


def network_digest(model: LanguageModel, parameters: Tensors) -> str:
    """Return a SHA-256 (hex) of everything that determines a network's logits.

    Covers parameters and buffers (also frozen ones), the settings in `config` if any, and the
    layers as torch prints them. Without a `module`, covers only `parameters`.
    """
    module = getattr(model, "module", None)
    if not isinstance(module, torch.nn.Module):
        return parameters_digest(parameters)
    settings = getattr(getattr(module, "config", None), "to_json_string", str)()
    moving = {f"start {name}": value for name, value in parameters.items()}
    buffers = {f"buffer {name}": value for name, value in module.named_buffers()}
    weights = parameters_digest({**module.state_dict(), **moving, **buffers})
    return hashlib.sha256("\0".join([weights, str(settings), str(module)]).encode()).hexdigest()


@torch.no_grad()
def check_causal(model: LanguageModel, field: str, sequence_length: int) -> None:
    """Check that the logits at a token depend only on that token and those before it.

    Computes logits of made-up tokens repeatedly: with other tokens after the text, with other texts
    before and after it in the pass, and with padding up to `sequence_length`. It uses the initial
    weights and weights near them, as initial zeros change in training. If a network fails, one user
    in a pass could move all gradients, and no clip bounds that. Networks whose logits are not
    finite, or equal for all texts, pass.

    Args:
        model: the model before training.
        field: config key and value that name the model, for errors.
        sequence_length: number of tokens of the longest row of a pass.

    Raises:
        ConfigError: the logits depend on anything else, the network writes into its parameters, or
            it cannot compute logits.
    """
    size = min(_TOKENS, sequence_length // 2)
    parameters: Tensors = {
        n: value.to(model.device) for n, value in model.initial_parameters().items()
    }
    first, second, third = (made_up_text(model, size, n) for n in range(3))
    frozen = list(module_of(model).parameters())
    longest = torch.cat([first, made_up_text(model, max(size, sequence_length - size), 1)], dim=1)
    for nudge in (0.0, NUDGE) if size else ():
        parameters = nudged(parameters, nudge)
        watched = [*parameters.values(), *frozen]
        versions = [value._version for value in watched]

        def logits(tokens: torch.Tensor, row: int = 0, given: Tensors = parameters) -> torch.Tensor:
            computed = model.logits(given, tokens)
            wanted = (*tokens.shape, model.vocabulary_size)
            if tuple(computed.shape) != wanted:
                raise ValueError(f"gave {tuple(computed.shape)} numbers, and not {wanted}")
            return computed[row, :size].nan_to_num()

        try:
            alone, far, other = logits(first), logits(longest), logits(second)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"{field}: its network cannot compute the logits of a text of {longest.shape[1]} "
                f"tokens (data.sequence_length): {type(error).__name__}: {reason[:300]}"
            ) from error
        # The median over words: a word that is never used may have a logit of -1e9, which would
        # hide all others.
        moved = (other - alone).abs().amax(dim=0) > 0.0
        largest = float(alone[:, moved].abs().amax(dim=0).median()) if moved.any() else 0.0
        if not float((other - alone)[-1].abs().max()) > _EQUAL * largest > 0.0:
            continue  # the logits ignore the input, for example if they are all zero
        after, beside = (
            logits(torch.cat([first, second], dim)) - logits(torch.cat([first, third], dim))
            for dim in (1, 0)
        )
        behind = logits(torch.cat([second, first]), 1) - logits(torch.cat([third, first]), 1)
        for differs, tolerance, what in (
            (logits(first) - alone, _EQUAL, "how often they were computed before"),
            (after, _EQUAL, "tokens after them: it is no causal model"),
            (beside, _EQUAL, "the other texts of a pass"),
            (behind, _EQUAL, "the other texts of a pass"),
            (far - alone, _ROUNDING, "the length of the longest text of a pass"),
        ):
            if float(differs.abs().max()) > tolerance * largest:
                raise ConfigError(_LEAKS.format(field=field, what=what))
        if [value._version for value in watched] != versions:
            raise ConfigError(f"{field}: it writes into its parameters while it computes")


def check_finite(model: LanguageModel, field: str) -> None:
    """Raise `ConfigError` if an initial weight, trainable or frozen, is NaN or infinite."""
    frozen = dict(module_of(model).named_parameters())
    for name, value in {**frozen, **model.initial_parameters()}.items():
        if num_wrong := int((~value.isfinite()).sum()):
            raise ConfigError(
                f"{field}: {num_wrong:,} of the {value.numel():,} numbers in {name} are NaN or "
                "infinite; get an intact copy of the files, or another model"
            )


def check_reads(model: LanguageModel, texts: Sequence[npt.NDArray[np.integer]], field: str) -> None:
    """Raise `ConfigError` if every token of these texts is unknown or empty.

    Args:
        model: model with the tokenizer.
        texts: token ids of some texts; context tokens as -1 - id.
        field: config key and value that name the model, for errors.
    """
    counted = [[int(id_) for id_ in text if id_ >= 0] for text in texts]
    if any(counted) and not any(model.decode(ids).strip() for ids in counted):
        raise ConfigError(
            f"{field}: its tokenizer does not fit these texts: every token of {len(texts)} texts "
            "is unknown, or decodes to an empty string; take a model for the texts' language"
        )


def unused_parameters(model: LanguageModel, length: int) -> list[str]:
    """Return the trainable parameters that do not affect any logit of a text of `length` tokens."""
    leaves = {
        name: value.to(model.device).requires_grad_()
        for name, value in model.initial_parameters().items()
    }
    logits = model.logits(leaves, made_up_text(model, length, 0))
    if not logits.requires_grad:
        return list(leaves)
    gradients = torch.autograd.grad(logits.sum(), list(leaves.values()), allow_unused=True)
    return [name for name, slope in zip(leaves, gradients, strict=True) if slope is None]


def made_up_text(model: LanguageModel, size: int, text: int) -> torch.Tensor:
    """Return a (1, size) text of tokens spread over the vocabulary."""
    ids = spread((torch.arange(size) + 1) * (text + 1) + text, model.vocabulary_size)
    return ids[None].to(model.device)


def spread(numbers: torch.Tensor, words: int) -> torch.Tensor:
    """Map each number to an id below `words`, spread over the vocabulary."""
    return numbers * (7919 if words % 7919 else 7907) % words


def nudged(parameters: Tensors, nudge: float = NUDGE) -> Tensors:
    """Return parameters near the given ones, so that zeros become non-zero."""
    if not nudge:
        return parameters
    return {name: _nudged(value, nudge) for name, value in parameters.items()}


def _nudged(value: torch.Tensor, nudge: float) -> torch.Tensor:
    pattern = torch.arange(_PERIOD, device=value.device).sin().to(value.dtype)
    repeated = pattern.repeat(-(-value.numel() // _PERIOD))[: value.numel()]
    size = float(value.float().square().mean().sqrt()) if value.numel() else 0.0
    # Relative to the tensor's size: larger changes would make the logits of a deep network explode.
    return value + nudge * (min(size, 1.0) or 1.0) * repeated.view(value.shape)

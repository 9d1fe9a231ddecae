"""LanguageModel: the interface between the mathematics and a network: parameters in, logits out.

`check_causal` tries whether a network keeps the part of it that the guarantee rests on. `fedsim`
never imports a model. A package that has one (such as `clients`) registers a loader under the
entry-point group `fedsim.models`.
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

_TOKENS = 8  # of a made-up text
NUDGE, _PERIOD = 0.05, 8191
_LEAKS = (
    "{field}: its logits depend on {what}. One user would change the gradients of others, which no "
    "clip bounds"
)
_EQUAL, _ROUNDING = 1e-5, 1e-4  # of the largest logit: of passes of one shape, and of two


class LanguageModel(Protocol):
    """A causal language model as a value.

    Attributes:
        name: what the user asked for, such as "tiny-gpt" or a folder.
        tokenizer_fingerprint: SHA-256 (hex) of the serialised tokenizer; stores are keyed by it.
        vocabulary_size: number of token ids.
        num_parameters: all parameters, the frozen ones included.
        unknown_token_id: the id that stands for "not in the vocabulary", which a top-1 accuracy
            counts as wrong (McMahan et al. 2018, App. B), or None where every text has its ids.
        origin: one sentence on the public data that the starting point and the vocabulary
            come from; printed in the report.
        device: where logits are computed.
        encoder: what `encode` calls.
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
        """Return, per text, its ids between a begin and an end token; never truncated."""
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
            tokens: (batch, length) int64 on `device`, padded on the right with any valid id;
                the model is causal, so padding never reaches an earlier position.

        Returns:
            (batch, length, vocabulary_size) float32.
        """
        ...

    def save(self, parameters: Tensors, folder: Path) -> None:
        """Write a folder (safetensors) that holds exactly these parameters and the tokenizer.

        It is read back before a run ends: by transformers, or by the loader that its `config.json`
        names as `fedsim_model`.
        """
        ...


class ChatModel(LanguageModel, Protocol):
    """A language model that reads conversations too, which chat data needs."""

    def chat_encoder(
        self, loss_on: str, chat_template: str | None, field: str
    ) -> Callable[[Sequence[str]], list[npt.NDArray[np.int64]]]:
        """Return what makes tokens of conversations.

        A conversation is a JSON text: see `fedsim.data.sources.conversations`. Tokens are ids, and
        -1 - id for those that do not count in a loss.

        Args:
            loss_on: which tokens count: "all", "assistant" or "completion".
            chat_template: a Jinja file, or "tokenizer" or None for the tokenizer's own template;
                with None, prompts and completions that are strings go through none.
            field: the config's key and value that asks, for errors.

        Raises:
            ConfigError: there is no template, or it cannot be read.
        """
        ...


class AdapterModel(LanguageModel, Protocol):
    """A language model of which an adapter may be all that is trained.

    Attributes:
        is_adapter: whether every trainable parameter belongs to an adapter.
    """

    @property
    def is_adapter(self) -> bool: ...

    def save_adapter(self, parameters: Tensors, folder: Path) -> None:
        """Write a folder that `peft.PeftModel.from_pretrained` opens on the network."""
        ...


def module_of(model: LanguageModel) -> torch.nn.Module:
    """Return the network of a model, or an empty one where it does not show it."""
    module = getattr(model, "module", None)
    return module if isinstance(module, torch.nn.Module) else torch.nn.Module()


def network_digest(model: LanguageModel, parameters: Tensors) -> str:
    """Return a SHA-256 (hex) of all that decides which logits a network computes.

    Its parameters and buffers, frozen ones included, its settings where it has some (`config`), and
    its layers as torch prints them. Of a network that cannot be looked into, of `parameters` alone.
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
    """Check that the logits of a text depend on nothing but the text before them.

    Tried on made-up tokens, at the starting weights and at others near them (what is zero at the
    start does not stay so): with other tokens after the text, with other texts before and after it
    in a pass, with padding up to `sequence_length`, and once more. A network that fails would let a
    user who shares a pass move everybody's gradient, which no clip bounds. What has no finite
    logits, or the same for every text, is not judged.

    Args:
        model: at its start.
        field: the config's key and value that named it, for errors.
        sequence_length: tokens of the longest row of a pass.

    Raises:
        ConfigError: they do, a call writes into the parameters, or none can be made.
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
        # Of most words: those that are never used may have a score of -1e9, beside which no other
        # would count.
        moved = (other - alone).abs().amax(dim=0) > 0.0
        largest = float(alone[:, moved].abs().amax(dim=0).median()) if moved.any() else 0.0
        if not float((other - alone)[-1].abs().max()) > _EQUAL * largest > 0.0:
            continue  # blind to its input, as with an output of zeros
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
    """Raise `ConfigError` where a weight of the start is NaN or infinite, frozen ones included."""
    frozen = dict(module_of(model).named_parameters())
    for name, value in {**frozen, **model.initial_parameters()}.items():
        if num_wrong := int((~value.isfinite()).sum()):
            raise ConfigError(
                f"{field}: {num_wrong:,} of the {value.numel():,} numbers in {name} are NaN or "
                "infinite; get a whole copy of the files, or another model"
            )


def check_reads(model: LanguageModel, texts: Sequence[npt.NDArray[np.integer]], field: str) -> None:
    """Raise `ConfigError` where a tokenizer knows nothing of the texts that it was given.

    Args:
        model: of the tokenizer.
        texts: ids of some texts; context tokens as -1 - id.
        field: the config's key and value that named the model, for errors.
    """
    counted = [[int(id_) for id_ in text if id_ >= 0] for text in texts]
    if any(counted) and not any(model.decode(ids).strip() for ids in counted):
        raise ConfigError(
            f"{field}: its tokenizer knows nothing of these texts: every token of {len(texts)} "
            "of them is unknown, or empty when it is decoded; take a model of their language"
        )


def unused_parameters(model: LanguageModel, length: int) -> list[str]:
    """Return the trainable parameters that no logit of a made-up text of `length` depends on."""
    leaves = {
        name: value.to(model.device).requires_grad_()
        for name, value in model.initial_parameters().items()
    }
    logits = model.logits(leaves, made_up_text(model, length, 0))
    if not logits.requires_grad:
        return list(leaves)
    gradients = torch.autograd.grad(logits.sum(), list(leaves.values()), allow_unused=True)
    return [name for name, found in zip(leaves, gradients, strict=True) if found is None]


def made_up_text(model: LanguageModel, size: int, text: int) -> torch.Tensor:
    """Return a (1, size) text of tokens spread over the vocabulary."""
    ids = spread((torch.arange(size) + 1) * (text + 1) + text, model.vocabulary_size)
    return ids[None].to(model.device)


def spread(numbers: torch.Tensor, words: int) -> torch.Tensor:
    """Return a word of so many for each number, spread over the vocabulary."""
    return numbers * (7919 if words % 7919 else 7907) % words


def nudged(parameters: Tensors, nudge: float = NUDGE) -> Tensors:
    """Return parameters near these: what is zero at the start does not stay so."""
    if not nudge:
        return parameters
    return {name: _nudged(value, nudge) for name, value in parameters.items()}


def _nudged(value: torch.Tensor, nudge: float) -> torch.Tensor:
    pattern = torch.arange(_PERIOD, device=value.device).sin().to(value.dtype)
    repeated = pattern.repeat(-(-value.numel() // _PERIOD))[: value.numel()]
    size = float(value.float().square().mean().sqrt()) if value.numel() else 0.0
    # By its own size: deep networks would be steep at weights that are larger than theirs.
    return value + nudge * (min(size, 1.0) or 1.0) * repeated.view(value.shape)

"""Encoders: texts to token ids without the network, so that worker processes can do it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tokenizers import Tokenizer

if TYPE_CHECKING:  # a tokenising process needs neither transformers nor torch
    from transformers import PreTrainedTokenizerBase


class Encoder(Protocol):
    """Texts to ids between a begin and an end token; never truncated."""

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text; a special token spelt out in a text is read as text."""
        ...


@dataclass(frozen=True)
class FastEncoder:
    """A tokenizer of the package `tokenizers`."""

    tokenizer: Tokenizer
    begin: int
    end: int

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text."""
        encoded = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [[self.begin, *encoding.ids, self.end] for encoding in encoded]

    def __reduce__(self) -> tuple[object, tuple[str, int, int]]:
        return _revived, (self.tokenizer.to_str(), self.begin, self.end)


@dataclass(frozen=True)
class SlowEncoder:
    """Any other tokenizer of transformers."""

    tokenizer: PreTrainedTokenizerBase
    begin: int
    end: int

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text."""
        if not texts:
            return []
        encoded = self.tokenizer(
            list(texts), add_special_tokens=False, split_special_tokens=True, verbose=False
        )
        return [[self.begin, *ids, self.end] for ids in encoded["input_ids"]]


def encoder_of(tokenizer: PreTrainedTokenizerBase, begin: int, end: int) -> Encoder:
    """Return the encoder of a tokenizer, between these two ids."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        return SlowEncoder(tokenizer, begin, end)
    try:
        return _revived(backend.to_str(), begin, end)
    except Exception:  # parts written in Python cannot be serialised
        return SlowEncoder(tokenizer, begin, end)


def plain(text: str) -> Tokenizer:
    """Return a tokenizer of its JSON, without the truncation and padding that it was saved with."""
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _revived(text: str, begin: int, end: int) -> FastEncoder:
    tokenizer = plain(text)
    tokenizer.encode_special_tokens = True
    return FastEncoder(tokenizer, begin, end)

"""The encoder: texts to token ids without the network, so worker processes can use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer


@dataclass(frozen=True)
class Encoder:
    """Encode texts to ids between a begin and an end token, without truncation.

    Attributes:
        tokenizer: result of `plain`; it reads special tokens spelt out in a text as text.
        begin: id before each text.
        end: id after each text.
    """

    tokenizer: Tokenizer
    begin: int
    end: int

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text."""
        encoded = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [[self.begin, *encoding.ids, self.end] for encoding in encoded]

    def __reduce__(self) -> tuple[object, tuple[str, int, int]]:
        return encoder_of, (self.tokenizer.to_str(), self.begin, self.end)


def encoder_of(tokenizer: str, begin: int, end: int) -> Encoder:
    """Return the encoder for a tokenizer in JSON and these begin and end ids."""
    return Encoder(plain(tokenizer), begin, end)


def plain(text: str) -> Tokenizer:
    """Return a tokenizer from its JSON, without its saved truncation and padding.

    It reads special tokens as text.
    """
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer

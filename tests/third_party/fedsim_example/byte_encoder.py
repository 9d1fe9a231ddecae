"""Texts to bytes and back. Without torch: the processes that build a token store import this."""

from __future__ import annotations

from collections.abc import Sequence

BEGIN, END, VOCABULARY_SIZE = 256, 257, 258


def encode(texts: Sequence[str]) -> list[list[int]]:
    """Return, per text, its UTF-8 bytes between the begin and the end token."""
    return [[BEGIN, *text.encode(), END] for text in texts]


def decode(ids: Sequence[int]) -> str:
    """Return the text of token ids; what is no UTF-8 becomes a question mark in a diamond."""
    return bytes(id_ for id_ in ids if id_ < BEGIN).decode(errors="replace")

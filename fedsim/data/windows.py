"""Random chunks: a window over a user's concatenated text, across the borders of its records.

Chua et al. 2024, §5.1, for user-level sampling only: what a window holds is no set of examples.
"""

from __future__ import annotations

import numpy as np

from fedsim.data.hashing import hashes
from fedsim.data.split import Split
from fedsim.data.store import Indices, TokenStore


def window_tokens(tokens: Indices, group_size: int, sequence_length: int) -> Indices:
    """Return how many tokens users with so many training tokens bring."""
    return np.minimum(tokens, group_size * sequence_length)


def windows(
    split: Split,
    store: TokenStore,
    users: Indices,
    *,
    group_size: int,
    base: int,
) -> tuple[Indices, Indices, Indices]:
    """Return one window a user, cut into the fewest sequences, of nearly equal length.

    A window has `group_size` times the store's sequence length of the user's training tokens, or
    all where there are fewer, and starts anywhere with equal probability (to 2⁻⁴⁰). It is a
    function of `base`, the user's key and the user's text in the order of the store alone.

    Args:
        split: of the store.
        store: where the tokens are.
        users: training users, indices of the split, int64, in the order wanted.
        group_size: most sequences of a user.
        base: of the hashes; see `hashing.base`.

    Returns:
        tokens: (sequences, longest of them) int64, padded with 0 on the right.
        lengths: (sequences,) int64.
        offsets: (users + 1,) int64, user i has the rows offsets[i] : offsets[i + 1].
    """
    longest = int(store.manifest["sequence_length"])
    keys = store.user_keys[split.users[users]]
    rows: list[Indices] = []
    counts = np.zeros(len(users), np.int64)
    for place, (user, hashed) in enumerate(
        zip(users.tolist(), hashes(base, keys).tolist(), strict=True)
    ):
        text = _window(split, store, user, group_size * longest, hashed)
        pieces = np.array_split(text, -(-len(text) // longest))
        counts[place] = len(pieces)
        rows += pieces
    lengths = np.array([len(row) for row in rows], np.int64)
    tokens = np.zeros((len(rows), int(lengths.max()) if len(rows) else 0), np.int64)
    for row, piece in enumerate(rows):
        tokens[row, : len(piece)] = piece
    return tokens, lengths, np.concatenate(([0], np.cumsum(counts)))


def _window(split: Split, store: TokenStore, user: int, size: int, hashed: int) -> Indices:
    """Return at most `size` neighbouring tokens of a user's training text, (tokens,) int64."""
    examples = split.user_examples(user)
    ends = np.cumsum(store.lengths(examples))
    total = int(ends[-1])
    start = hashed % (total - size + 1) if total > size else 0
    stop = min(total, start + size)
    first, last = np.searchsorted(ends, [start, stop - 1], side="right")
    text = np.concatenate([store.example(int(one)) for one in examples[first : last + 1]])
    before = start - (int(ends[first - 1]) if first else 0)
    window: Indices = text[before : before + stop - start].astype(np.int64)
    return window

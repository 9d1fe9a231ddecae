"""A synthetic source as large as the papers' data sets, with known tokens.

Each character of a text is one token id, so `encode` is almost free and the benchmark measures the
build itself. No text is stored: a text is a slice of one block of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

USERS = 342_477  # as in the federated Stack Overflow set
EXAMPLES = 20_500_000
LARGEST = 36_000
VOCABULARY_SIZE = 50_257
SEQUENCE_LENGTH = 64

_FIRST, _LAST = 0x100, VOCABULARY_SIZE  # range of characters; none is white space
_BLOCK = 1 << 22


def user_sizes(users: int = USERS, examples: int = EXAMPLES) -> npt.NDArray[np.int64]:
    """Return each user's number of examples: long tail, minimum 1, sum about `examples`."""
    largest = max(1, min(LARGEST, examples // 4))
    shares = np.random.default_rng(1).pareto(1.2, users) + 0.05
    sizes = np.zeros(users, np.int64)
    scale = examples / shares.sum()
    for _ in range(8):  # redistribute examples above the cap
        sizes = np.clip(np.ceil(shares * scale).astype(np.int64), 1, largest)
        scale *= examples / sizes.sum()
    sizes[users // 2] = largest
    return sizes


def texts(sizes: npt.NDArray[np.int64], seed: int = 2) -> Iterator[tuple[str, str]]:
    """Yield (user, text), users in random order, 10 to 64 tokens per text, about 40 on average."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(_FIRST, _LAST, _BLOCK + SEQUENCE_LENGTH, dtype=np.uint16)
    block = numbers.tobytes().decode("utf-16-le")
    order = np.repeat(np.arange(len(sizes), dtype=np.uint32), sizes)
    rng.shuffle(order)
    names = [f"user-{user}" for user in range(len(sizes))]
    for first in range(0, len(order), 1 << 16):
        users = order[first : first + (1 << 16)].tolist()
        starts = rng.integers(0, _BLOCK, len(users)).tolist()
        lengths = rng.triangular(10, 44, SEQUENCE_LENGTH + 1, len(users)).astype(int).tolist()
        for user, start, length in zip(users, starts, lengths, strict=True):
            yield names[user], block[start : start + length]


def encode(batch: Sequence[str]) -> list[npt.NDArray[np.uint16]]:
    """Return the token ids of the characters."""
    return [np.frombuffer(text.encode("utf-16-le"), np.uint16) for text in batch]

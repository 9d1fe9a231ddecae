"""Canary users with made-up texts, added to the users of a store.

Each example of a canary repeats one token, which is unique to the canary. So any selection of its
examples gives a large gradient in the same direction, nearly orthogonal to other users' gradients.
Tokens are drawn uniformly, as in Panda et al. 2025 (arXiv 2503.06808) at a high temperature; most
are unlike real users' tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedsim.config import Config
from fedsim.data.canaries import StoredRecords
from fedsim.data.sources.records import Record
from fedsim.data.store import Indices, TokenStore
from fedsim.errors import ConfigError
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials
from fedsim.seeding import stream

_NAME = "\0canary "  # followed by a number; no real user has such a name


def draw_texts(model: LanguageModel, count: int, length: int, seed: int) -> Indices:
    """Return the canaries' texts, (count, length) int64: a begin token, then one token repeated.

    Args:
        model: model with the vocabulary from which tokens are drawn without replacement.
        count: number of texts.
        length: number of tokens per text, with the begin token.
        seed: seed of the draws.

    Raises:
        ConfigError: there are more texts than tokens.
    """
    begin, end = model.encode([""])[0]
    if count > model.vocabulary_size - 2:
        raise ConfigError(
            f"--canaries = {count}: each needs its own token, and {model.name} has "
            f"{model.vocabulary_size - 2}; give at most that"
        )
    keys = stream(seed, "audit", 2).gumbel(size=model.vocabulary_size)
    keys[[begin, end]] = -np.inf
    texts = np.repeat(np.argsort(-keys)[:count, None], length, axis=1)
    texts[:, 0] = begin
    return texts


def copies(config: Config) -> int:
    """Return the number of examples per canary, enough for training after the held-out split."""
    strategy = config.strategy
    needed = max(strategy.group_size, getattr(strategy, "user_weight_cap", None) or 1)
    return math.ceil((needed + 1) / (1.0 - config.data.held_out_examples))


def add_users(
    materials: Materials, texts: Indices, included: npt.NDArray[np.bool_], times: int, folder: Path
) -> None:
    """Write a store with the users of `materials`, followed by the included canaries.

    Args:
        materials: materials of the run.
        texts: (canaries, length) token ids.
        included: (canaries,) bool; the store leaves out other canaries.
        times: number of examples per canary, all with the same text.
        folder: folder of the store, which must not exist. It will hold private text.
    """
    records = _WithCanaries(materials.store, texts, np.flatnonzero(included).tolist(), times)
    records.build(folder, materials.model.vocabulary_size, "canaries")


class _WithCanaries(StoredRecords):
    """The records of the store, followed by those of the canaries."""

    def __init__(
        self, store: TokenStore, texts: Indices, included: Sequence[int], times: int
    ) -> None:
        super().__init__(store)
        self._texts = texts
        self._included = included
        self._times = times

    def __iter__(self) -> Iterator[Record]:
        yield from super().__iter__()
        for canary in self._included:
            for _ in range(self._times):
                yield Record(f"{_NAME}{canary}", str(self.store.num_examples + canary))

    def ids(self, example: int) -> Indices:
        """Return the token ids of an example of a real user or a canary."""
        real = self.store.num_examples
        return super().ids(example) if example < real else self._texts[example - real]

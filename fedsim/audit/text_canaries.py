"""Canary users that are text: made up, and added to the users of a store.

A canary says one token that no other canary says, again and again, in every example that it has.
So whatever is chosen of its examples pulls the gradient the same way, further than a clip lets
pass, and hardly along what other canaries or real users pull. All tokens are equally likely, as in
Panda et al. 2025 (arXiv 2503.06808) at a high temperature: most are unlike the users' own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedsim.config import Config
from fedsim.data.canaries import StoredRecords
from fedsim.data.store import Indices, TokenStore
from fedsim.errors import ConfigError
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials
from fedsim.seeding import stream

_NAME = "\0canary "  # and a number; no user of a text is called so


def draw_texts(model: LanguageModel, count: int, length: int, seed: int) -> Indices:
    """Return the canaries' texts, (count, length) int64: a begin token, then one token repeated.

    Args:
        model: tokens are drawn, without replacement, from its vocabulary.
        count: number of texts.
        length: tokens of each, the begin token counted.
        seed: of the draws.

    Raises:
        ConfigError: more texts than tokens.
    """
    begin, end = model.encode([""])[0]
    if count > model.vocabulary_size - 2:
        raise ConfigError(
            f"--canaries = {count}: each says a token of its own, and {model.name} has "
            f"{model.vocabulary_size - 2}; give at most that"
        )
    keys = stream(seed, "audit", 2).gumbel(size=model.vocabulary_size)
    keys[[begin, end]] = -np.inf
    texts = np.repeat(np.argsort(-keys)[:count, None], length, axis=1)
    texts[:, 0] = begin
    return texts


def copies(config: Config) -> int:
    """Return how often a canary says its text: what is held out of it leaves enough to train on."""
    strategy = config.strategy
    needed = max(strategy.group_size, getattr(strategy, "user_weight_cap", None) or 1)
    return math.ceil((needed + 1) / (1.0 - config.data.held_out_examples))


def add_users(
    materials: Materials, texts: Indices, included: npt.NDArray[np.bool_], times: int, folder: Path
) -> None:
    """Write a store of the users of `materials` and, behind them, the canaries that are in.

    Args:
        materials: of the run.
        texts: (canaries, length) token ids.
        included: (canaries,), who is in; the store says nothing of the others.
        times: examples of a canary, all with its text.
        folder: of the store; must not exist. Holds the private text.
    """
    records = _WithCanaries(materials.store, texts, np.flatnonzero(included).tolist(), times)
    records.build(folder, materials.model.vocabulary_size, "canaries")


class _WithCanaries(StoredRecords):
    """The records of the store, then those of the canaries, numbered behind them."""

    def __init__(
        self, store: TokenStore, texts: Indices, included: Sequence[int], times: int
    ) -> None:
        super().__init__(store)
        self._texts = texts
        self._included = included
        self._times = times

    def __iter__(self) -> Iterator[tuple[str, str]]:
        yield from super().__iter__()
        for canary in self._included:
            for _ in range(self._times):
                yield f"{_NAME}{canary}", str(self.store.num_examples + canary)

    def ids(self, example: int) -> Indices:
        """Return the token ids of an example, a canary's too."""
        real = self.store.num_examples
        return super().ids(example) if example < real else self._texts[example - real]

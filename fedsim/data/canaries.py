"""Canary users: real users with one piece of their own text planted into all their examples.

Kandpal et al. 2023, Algorithm 1. A canary replaces the user that it is made from. Consecutive
tokens of one of the user's examples are inserted at a random position into each example of the
canary. Insertion works on token ids, so the piece has exactly the configured number of tokens. If
an example becomes too long, the tokens before its last are cut.

A store with canaries is a separate store in the cache, built from another store, the settings and
the seed. Each user's own coin decides whether the user becomes a canary, so an additional user
changes no other choice. The coin's probability depends on the number of users with enough text,
which is treated as public.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedsim.data.building.build import build_store
from fedsim.data.building.tokenise import BatchTokeniser
from fedsim.data.config import CanaryConfig
from fedsim.data.sources.records import Record
from fedsim.data.store import Indices, TokenStore
from fedsim.data.store.manifest import USERS
from fedsim.errors import ConfigError
from fedsim.seeding import base, hashes, stream
from fedsim.utils import files as paths
from fedsim.utils.json_text import digest

Ids = npt.NDArray[np.int64]

_VERSION = 4
_USERS, _EXAMPLES = 0, 1  # the round in the address stream(seed, "canaries", round)


def with_canaries(
    store: TokenStore, config: CanaryConfig | None, seed: int, vocabulary_size: int
) -> tuple[TokenStore, Indices]:
    """Return the store with planted canaries, and the indices of the canaries, ascending.

    Without `config`, returns the given store and no canaries. Users keep their indices.

    Raises:
        ConfigError: too few users have enough text to become canaries.
    """
    if config is None:
        return store, np.zeros(0, np.int64)
    chosen = _chosen(store, config, seed)
    identity = [_VERSION, store.manifest["sha256"], config.model_dump(), seed]
    destination = paths.cache_dir() / "stores" / digest(identity)
    if not destination.exists():
        planted = _Planted(store, config, seed, set(chosen.tolist()))
        with suppress(FileExistsError):  # another process built the same store first
            planted.build(destination, vocabulary_size, f"{len(chosen)} canaries")
    return TokenStore.open(destination), chosen


def _chosen(store: TokenStore, config: CanaryConfig, seed: int) -> Indices:
    """Draw the canaries among users with enough text: `num_users` on average."""
    everything = np.arange(store.num_examples)
    long_enough = store.lengths(everything) >= config.shared_tokens + 2
    before = np.concatenate(([0], np.cumsum(long_enough)))
    has_piece = np.diff(before[store.user_offsets]) > 0
    able = np.flatnonzero((np.diff(store.user_offsets) >= config.num_examples) & has_piece)
    if len(able) < config.num_users:
        raise ConfigError(
            f"data.canaries.num_users = {config.num_users}: only {len(able)} users have "
            f"{config.num_examples} examples, one of them with {config.shared_tokens} tokens "
            "between its first and its last; reduce num_users, num_examples or shared_tokens"
        )
    coins = hashes(base(seed, "canaries", _USERS), store.user_keys[able])
    return able[coins <= np.uint64(int(config.num_users / len(able) * 2.0**64) - 1)]


class StoredRecords:
    """The examples of a store as records: the text of a record is the example's number.

    `encode` maps these numbers to token ids.

    Attributes:
        store: the original store.
        dropped: its counts of dropped items, plus those of a change.
    """

    def __init__(self, store: TokenStore) -> None:
        self.store = store
        self.dropped = Counter(store.manifest["dropped"])

    def __iter__(self) -> Iterator[Record]:
        with (self.store.path / USERS).open(encoding="utf-8") as names:
            for user, line in enumerate(names):
                name: str = json.loads(line)
                yield from (Record(name, str(e)) for e in self.examples(user).tolist())

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of the examples with these numbers."""
        return [self.ids(int(text)) for text in texts]

    def examples(self, user: int) -> Indices:
        """Return the examples of a user."""
        return self.store.user_examples(user)

    def ids(self, example: int) -> Ids:
        """Return the token ids of an example."""
        return self.store.example(example).astype(np.int64)

    def build(self, destination: Path, vocabulary_size: int, what: str) -> TokenStore:
        """Build a store from these records; its source is "ORIGINAL SOURCE with `what`"."""
        manifest = self.store.manifest
        tokeniser = BatchTokeniser(
            self.encode,
            vocabulary_size,
            manifest["sequence_length"],
            manifest["cutting"],
            manifest["loss_on"],
            whole=True,
        )
        source, fingerprint = f"{manifest['source']} with {what}", manifest["tokenizer_fingerprint"]
        return build_store(
            self, tokeniser, destination, tokenizer_fingerprint=fingerprint, source=source
        )


class _Planted(StoredRecords):
    """The records with canaries planted among them."""

    def __init__(
        self, store: TokenStore, config: CanaryConfig, seed: int, canaries: set[int]
    ) -> None:
        super().__init__(store)
        self._config = config
        self._seed = seed
        self._canaries = canaries
        self._changed: dict[int, Ids] = {}

    def examples(self, user: int) -> Indices:
        """Return the examples of a user; plants the piece if the user is a canary."""
        examples = super().examples(user)
        return self._plant(user, examples) if user in self._canaries else examples

    def ids(self, example: int) -> Ids:
        """Return the token ids of an example; changed ids can be read only once."""
        changed = self._changed.pop(example, None)
        return super().ids(example) if changed is None else changed

    def _plant(self, user: int, examples: Indices) -> Indices:
        """Plant a piece into a user's examples; return the examples that the canary keeps."""
        random = stream(self._seed, "canaries", _EXAMPLES, int(self.store.user_keys[user]))
        shared, longest = self._config.shared_tokens, self.store.manifest["sequence_length"]
        whole = [self.ids(int(e)) for e in examples]
        sources = [ids for ids in whole if len(ids) >= shared + 2]
        source = sources[random.integers(len(sources))]
        start = int(random.integers(1, len(source) - shared))
        piece = source[start : start + shared]
        numbers = np.sort(random.choice(len(whole), self._config.num_examples, replace=False))
        self.dropped["canaries: examples beyond num_examples"] += len(whole) - len(numbers)
        for number in numbers.tolist():
            planted = insert(whole[number], piece, random, longest)
            cut = len(whole[number]) + shared - len(planted)
            self.dropped["canaries: tokens cut to make room"] += cut
            self._changed[int(examples[number])] = planted
        return examples[numbers]


def insert(ids: Ids, piece: Ids, random: np.random.Generator, longest: int) -> Ids:
    """Return `ids` with `piece` inserted at a uniform position, at most `longest` ids in total.

    The first and the last id stay at the ends. If the result is too long, ids before the last are
    left out.
    """
    room = longest - len(piece)
    if len(ids) > room:
        ids = np.concatenate([ids[: room - 1], ids[-1:]])
    place = int(random.integers(1, len(ids)))
    return np.concatenate([ids[:place], piece, ids[place:]])


def sentence(config: CanaryConfig | None) -> tuple[str, ...]:
    """Return the report's sentence on planted users; () without planted users.

    It must not contain their number, which is a sum of private coins.
    """
    if config is None:
        return ()
    return (
        f"The data contain planted users (canaries), {config.num_users} on average. Their text was "
        "changed to be easy to recognise, to measure attacks. A private coin per user decides "
        "whether the user becomes a canary; another coin decides whether a canary is held out. The "
        "number of users with enough text was counted in private text and is treated as public.",
    )

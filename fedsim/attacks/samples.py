"""The users and samples of an attack: members, and others who were not trained on.

Kandpal et al. 2023, D.1. Members are users of the training set; the attacker has their held-out
examples, without those that the user also has, token for token, among the training examples. For
users who were never trained on, the attacker has the examples that the same rule would have held
out, so that both sides have equally many.

If texts have several owners, a listener is an owner who wrote nothing. The attacker has the
listener's share of the texts that the same rule holds out from their writers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedsim.data.config import DataConfig
from fedsim.data.split import Split, split_store
from fedsim.data.store import Indices, TokenStore
from fedsim.errors import ConfigError
from fedsim.evaluation.scoring import owners
from fedsim.seeding import base, hashes

FEWEST_USERS = 2  # of each side; fewer give no ROC


@dataclass(frozen=True, eq=False)
class AttackSamples:
    """Every user's samples that an attacker may have, in the order in which it gets them.

    Attributes:
        users: indices of the store, int64, ascending; those with at least one sample. Listeners
            have numbers from the store's number of users on, as in its owner graph.
        offsets: (users + 1,) int64: user i has samples[offsets[i] : offsets[i + 1]].
        samples: examples of the store, int64; a user's are in an order drawn from the seed.
        trained: everyone whose text was trained on, int64, ascending; with samples or without.
        held_out: the same of those who are held out. Where texts have several owners, some are on
            neither side, and have no samples: others of their owners kept all their texts out.
    """

    users: Indices
    offsets: Indices
    samples: Indices
    trained: Indices
    held_out: Indices

    @property
    def member(self) -> npt.NDArray[np.bool_]:
        """Whether each user was trained on, (users,)."""
        return np.isin(self.users, self.trained)

    @property
    def counts(self) -> Indices:
        """Number of samples of each user, at least 1."""
        return np.diff(self.offsets)


@dataclass(frozen=True, eq=False)
class MemberSplit:
    """Members and others: indices into `AttackSamples.users`, and counts with too few samples."""

    inside: Indices
    outside: Indices
    left_out_in: int
    left_out_out: int


def known_samples(
    store: TokenStore, split: Split, data: DataConfig, seed: int, pooled: Indices | None = None
) -> AttackSamples:
    """Return what an attacker may know of every user.

    Args:
        store: of the run.
        split: of the store.
        data: how it was split.
        seed: what it was split by.
        pooled: the examples that rounds drew from, None for all training examples; read where texts
            have several owners.
    """
    everyone = split_store(
        store,
        seed,
        data.held_out_examples,
        0.0,
        rule=data.held_out_rule,
        limit=data.held_out_limit,
        from_users=data.held_out_from,
    )
    samples = _not_trained_on(store, everyone)
    whose = owners(store, samples)
    trained, held_out = split.users, split.held_out_users
    if (graph := store.graph) is not None:
        examples = split.train_examples if pooled is None else pooled
        trained, held_out = np.flatnonzero(graph.degrees(examples)), split.held_out_owners
        counts, co_owners = graph.of(samples)
        samples, writer = np.repeat(samples, counts), np.repeat(whose, counts)
        asked = (co_owners == writer) | (co_owners >= graph.num_users)
        asked &= np.isin(co_owners, np.concatenate([trained, held_out]))
        samples, whose = samples[asked], co_owners[asked]
    order = np.lexsort((hashes(base(seed, "attack", 0), store.example_keys[samples]), whose))
    users, counts = np.unique(whose, return_counts=True)
    return AttackSamples(
        users=users,
        offsets=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        samples=samples[order],
        trained=trained,
        held_out=held_out,
    )


def _not_trained_on(store: TokenStore, everyone: Split) -> Indices:
    """Return the held-out examples without those that equal another example of their writer.

    For users who were never trained on too, so that the sides differ by the training alone.
    """
    keys = store.example_keys
    if store.graph is not None:  # there the keys depend on places in the graph
        contents = (store.example(example).tobytes() for example in range(store.num_examples))
        keys = np.fromiter((hash(content) % 2**64 for content in contents), np.uint64)

    def texts(examples: Indices) -> npt.NDArray[np.void]:
        found = np.empty(len(examples), [("writer", np.int64), ("key", np.uint64)])
        found["writer"], found["key"] = owners(store, examples), keys[examples]
        return found

    samples = everyone.held_out_examples
    return samples[~np.isin(texts(samples), texts(everyone.train_examples))]


def choose_sides(known: AttackSamples, group: Indices, samples: int) -> MemberSplit:
    """Return the users of a group who have at least `samples` samples.

    Args:
        known: everyone's samples.
        group: numbers as in `known.users`, int64.
        samples: at least 1.

    Raises:
        ConfigError: fewer than two of them on a side.
    """
    in_group = np.isin(known.users, group)
    enough = known.counts >= samples
    inside, outside = (
        np.flatnonzero(in_group & side & enough) for side in (known.member, ~known.member)
    )
    if min(len(inside), len(outside)) < FEWEST_USERS:
        raise ConfigError(
            f"--samples {samples}: {len(inside)} trained and {len(outside)} held-out users have "
            f"that many examples that were not trained on; {FEWEST_USERS} of each are needed; "
            "give a smaller number, or hold out more users or examples"
        )
    return MemberSplit(
        inside,
        outside,
        left_out_in=len(np.intersect1d(known.trained, group)) - len(inside),
        left_out_out=len(np.intersect1d(known.held_out, group)) - len(outside),
    )


def default_samples(known: AttackSamples, groups: Iterable[Indices]) -> list[int]:
    """Return 1, 2, 4, … as far as half of each group's users on each side have so many samples."""
    sides = [
        known.counts[np.isin(known.users, group) & side]
        for group in groups
        for side in (known.member, ~known.member)
    ]
    half = min(int(np.median(counts)) if len(counts) else 1 for counts in sides)
    return [1 << power for power in range(half.bit_length())]

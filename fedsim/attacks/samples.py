"""The users and samples of an attack: members and non-members (Kandpal et al. 2023, D.1).

Members are users of the training set. The attacker has their held-out examples, except exact copies
of the user's training examples. For non-members the attacker has the examples that the same rule
would hold out, so that both sides have equally many samples.

If texts have several owners, a listener is an owner without own texts. The attacker has the
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

FEWEST_USERS = 2  # minimum number of users per side for a ROC


@dataclass(frozen=True, eq=False)
class AttackSamples:
    """All users' samples for the attacker, in the order of use.

    Attributes:
        users: users with at least one sample: indices of the store, int64, ascending. Listeners
            have numbers from the store's number of users, as in its owner graph.
        offsets: (users + 1,) int64: user i has samples[offsets[i] : offsets[i + 1]].
        samples: examples of the store, int64; a user's samples are in random order.
        trained: all users with training text, int64, ascending; with samples or without.
        held_out: all held-out users, likewise. If texts have several owners, some users are on
            neither side, because co-owners kept all their texts out of training.
    """

    users: Indices
    offsets: Indices
    samples: Indices
    trained: Indices
    held_out: Indices

    @property
    def member(self) -> npt.NDArray[np.bool_]:
        """(users,): whether the user's text was in the training data."""
        return np.isin(self.users, self.trained)

    @property
    def counts(self) -> Indices:
        """Number of samples of each user, at least 1."""
        return np.diff(self.offsets)


@dataclass(frozen=True, eq=False)
class MemberSplit:
    """Members and non-members (indices into `AttackSamples.users`); counts of left-out users."""

    inside: Indices
    outside: Indices
    left_out_in: int
    left_out_out: int


def known_samples(
    store: TokenStore, split: Split, data: DataConfig, seed: int, pooled: Indices | None = None
) -> AttackSamples:
    """Return the samples of all users for the attacker.

    Args:
        store: token store of the run.
        split: split of the store.
        data: config of the split.
        seed: seed of the split.
        pooled: examples from which rounds drew; None: all training examples. Used only if texts
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
    owner = owners(store, samples)
    trained, held_out = split.users, split.held_out_users
    if (graph := store.graph) is not None:
        examples = split.train_examples if pooled is None else pooled
        trained, held_out = np.flatnonzero(graph.degrees(examples)), split.held_out_owners
        counts, co_owners = graph.of(samples)
        samples, writer = np.repeat(samples, counts), np.repeat(owner, counts)
        attacked = (co_owners == writer) | (co_owners >= graph.num_users)
        attacked &= np.isin(co_owners, np.concatenate([trained, held_out]))
        samples, owner = samples[attacked], co_owners[attacked]
    order = np.lexsort((hashes(base(seed, "attack", 0), store.example_keys[samples]), owner))
    users, counts = np.unique(owner, return_counts=True)
    return AttackSamples(
        users=users,
        offsets=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        samples=samples[order],
        trained=trained,
        held_out=held_out,
    )


def _not_trained_on(store: TokenStore, everyone: Split) -> Indices:
    """Return the held-out examples, without copies of training examples of the same writer.

    The same rule applies to non-members, so that the sides differ only by the training.
    """
    keys = store.example_keys
    if store.graph is not None:  # such a store's keys depend on positions in the graph
        contents = (store.example(example).tobytes() for example in range(store.num_examples))
        keys = np.fromiter((hash(content) % 2**64 for content in contents), np.uint64)

    def texts(examples: Indices) -> npt.NDArray[np.void]:
        pairs = np.empty(len(examples), [("writer", np.int64), ("key", np.uint64)])
        pairs["writer"], pairs["key"] = owners(store, examples), keys[examples]
        return pairs

    samples = everyone.held_out_examples
    return samples[~np.isin(texts(samples), texts(everyone.train_examples))]


def choose_sides(known: AttackSamples, group: Indices, samples: int) -> MemberSplit:
    """Return the users of a group with at least `samples` samples.

    Args:
        known: samples of all users.
        group: users of the group, numbered as in `known.users`, int64.
        samples: minimum number of samples, at least 1.

    Raises:
        ConfigError: a side has fewer than two such users.
    """
    in_group = np.isin(known.users, group)
    enough = known.counts >= samples
    inside, outside = (
        np.flatnonzero(in_group & side & enough) for side in (known.member, ~known.member)
    )
    if min(len(inside), len(outside)) < FEWEST_USERS:
        raise ConfigError(
            f"--samples {samples}: {len(inside)} trained and {len(outside)} held-out users have "
            f"that many examples outside the training data; {FEWEST_USERS} of each are needed; "
            "give a smaller number, or hold out more users or examples"
        )
    return MemberSplit(
        inside,
        outside,
        left_out_in=len(np.intersect1d(known.trained, group)) - len(inside),
        left_out_out=len(np.intersect1d(known.held_out, group)) - len(outside),
    )


def default_samples(known: AttackSamples, groups: Iterable[Indices]) -> list[int]:
    """Return 1, 2, 4, … while half of the users on each side of each group have enough samples."""
    sides = [
        known.counts[np.isin(known.users, group) & side]
        for group in groups
        for side in (known.member, ~known.member)
    ]
    half = min(int(np.median(counts)) if len(counts) else 1 for counts in sides)
    return [1 << power for power in range(half.bit_length())]

"""Who and what is held out: some examples of each user, and some users wholly.

Held-out examples measure utility, held-out users serve attacks and personalisation. Each user and
each of a user's examples has a hash of the seed and its place in the store, and the smallest
hashes are held out. So which of a user's examples are held out depends on nobody else, and no
generator has to be made for each of 300,000 users. Who is held out does depend on who else is
there, by rank, because a fraction of the users is asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedsim.data.hashing import base, hashes
from fedsim.data.store import Indices, TokenStore
from fedsim.errors import ConfigError

_EXAMPLES, _USERS = 0, 1  # the round in the address stream(seed, "split", round)


@dataclass(frozen=True, eq=False)
class Split:
    """What is trained on and what is not; indices are the store's unless said otherwise.

    Attributes:
        users: per training user its index in the store, int64, ascending.
        held_out_users: users never trained on, int64, ascending.
        held_out_examples: held-out examples of training users, int64, ascending; may be empty
            where users have few examples.
        train_examples: examples trained on, int64, ascending, hence by user.
        train_offsets: training user i has train_examples[offsets[i] : offsets[i + 1]], never none.
    """

    users: Indices
    held_out_users: Indices
    held_out_examples: Indices
    train_examples: Indices
    train_offsets: Indices

    @property
    def num_users(self) -> int:
        """Number of training users."""
        return len(self.users)

    @property
    def user_sizes(self) -> Indices:
        """Number of training examples of each training user, int64, at least 1."""
        return np.diff(self.train_offsets)

    def user_examples(self, user: int) -> Indices:
        """Return the training examples of training user `user`, ascending, never empty.

        Raises:
            IndexError: there is no such training user.
        """
        if not 0 <= user < self.num_users:
            raise IndexError(f"user {user}: the split has {self.num_users} training users")
        return self.train_examples[self.train_offsets[user] : self.train_offsets[user + 1]]


def split_store(
    store: TokenStore, seed: int, held_out_examples: float, held_out_users: float
) -> Split:
    """Split a store.

    Args:
        store: the users and their examples.
        seed: the run's seed.
        held_out_examples: fraction of each user's examples, [0, 1); rounded half up, but one
            example is always left for training, so a user with one example keeps it.
        held_out_users: the probability, [0, 1), that a user is wholly held out; each flips its own
            coin, so who else is in the data does not matter.

    Raises:
        ConfigError: `held_out_users` leaves nobody to train on.
    """
    sizes = np.diff(store.user_offsets)
    is_held_out_user = _held_out_users(len(sizes), seed, held_out_users)
    is_held_out = _held_out_examples(store.user_offsets, sizes, seed, held_out_examples)
    in_training_user = np.repeat(~is_held_out_user, sizes)
    is_train = in_training_user & ~is_held_out
    users = np.flatnonzero(~is_held_out_user)
    before = np.concatenate(([0], np.cumsum(is_train, dtype=np.int64)))
    train_sizes = np.diff(before[store.user_offsets])[users]
    return Split(
        users=users,
        held_out_users=np.flatnonzero(is_held_out_user),
        held_out_examples=np.flatnonzero(in_training_user & is_held_out),
        train_examples=np.flatnonzero(is_train),
        train_offsets=np.concatenate(([0], np.cumsum(train_sizes))),
    )


def _held_out_users(num_users: int, seed: int, fraction: float) -> npt.NDArray[np.bool_]:
    """Flip a coin for each user: with ranks, one user more would move another across the split."""
    coins = hashes(base(seed, "split", _USERS), np.arange(num_users))
    chosen: npt.NDArray[np.bool_] = coins < np.uint64(int(fraction * 2.0**64))
    if chosen.all():
        raise ConfigError(
            f"data.held_out_users = {fraction}: leaves none of the {num_users} users to train on"
        )
    return chosen


def _held_out_examples(
    user_offsets: Indices, sizes: Indices, seed: int, fraction: float
) -> npt.NDArray[np.bool_]:
    """Return a mask over all examples: of each user those with the smallest hashes."""
    chosen = np.zeros(user_offsets[-1], np.bool_)
    starts = hashes(base(seed, "split", _EXAMPLES), np.arange(len(sizes)))
    by_size = np.argsort(sizes, kind="stable")
    distinct, firsts = np.unique(sizes[by_size], return_index=True)
    # Users of one size make a block: far quicker than one user at a time, or one sort of all.
    for size, users in zip(distinct.tolist(), np.split(by_size, firsts[1:]), strict=True):
        count = min(math.floor(fraction * size + 0.5), size - 1)
        if count == 0:
            continue
        of_examples = hashes(starts[users, None], np.arange(size))
        # SplitMix64 permutes the 64-bit numbers, so a user's hashes differ: `count` pass, exactly.
        limit = np.partition(of_examples, count - 1, axis=1)[:, count - 1, None]
        chosen[user_offsets[users, None] + np.arange(size)] = of_examples <= limit
    return chosen

"""Split a store: hold out some examples of each user, and some users completely.

Held-out examples measure utility; held-out users are for attacks and personalisation. Each user has
a hash of the seed and the user's key. Each example has a hash of the user's hash and the example's
key (`store/keys.py`). The smallest hashes are held out, so the choice does not depend on other
users or on positions in the file. Instead, a user's first or last examples in store order can be
held out: for example the newest, if the preparation sorted by time.

If texts have several owners, every owner flips the coin of `held_out_users`. A text with a held-out
owner is not trained on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedsim.data.store import Indices, TokenStore
from fedsim.data.store.rows import firsts
from fedsim.errors import ConfigError
from fedsim.seeding import Hashes, base, hashes

_EXAMPLES, _USERS, _FROM = 0, 1, 2  # the round in the address stream(seed, "split", round)

_NOBODY: Indices = np.zeros(0, np.int64)

Rule = Literal["random", "first", "last"]


@dataclass(frozen=True, eq=False)
class Split:
    """Training and held-out users and examples, as indices of the store.

    Attributes:
        users: store index of each training user, int64, ascending.
        held_out_users: users never trained on, int64, ascending.
        held_out_examples: held-out examples of training users, int64, ascending; may be empty if
            users have few examples.
        train_examples: training examples, int64, ascending, and so grouped by user.
        train_offsets: training user i has train_examples[offsets[i] : offsets[i + 1]], at least 1.
        canaries: planted users (`fedsim.data.canaries`), int64, ascending.
        held_out_owners: held-out owners of the store's graph, int64, ascending; empty without a
            graph.
    """

    users: Indices
    held_out_users: Indices
    held_out_examples: Indices
    train_examples: Indices
    train_offsets: Indices
    canaries: Indices = field(default_factory=lambda: _NOBODY)
    held_out_owners: Indices = field(default_factory=lambda: _NOBODY)

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
    store: TokenStore,
    seed: int,
    held_out_examples: float,
    held_out_users: float,
    *,
    rule: Rule = "random",
    limit: int | None = None,
    from_users: float = 1.0,
    canaries: Indices | None = None,
) -> Split:
    """Split a store.

    Args:
        store: the users and their examples.
        seed: seed of the choices; see `Materials.seed`.
        held_out_examples: fraction of each user's examples, in [0, 1). At least one example of a
            user always stays for training.
        rule: "random" rounds the number half up. "first" and "last" take a user's first or last
            examples and round the number up. This gives users with one training and one held-out
            example, as in Charles et al. 2024, Table 1.
        limit: maximum number of held-out examples per user; None for no limit.
        from_users: probability, in (0, 1], that a user has held-out examples. All examples of other
            users are trained on.
        held_out_users: probability, in [0, 1), that a user is completely held out; users flip
            independent coins.
        canaries: planted users, ascending; their probability is 1/2 instead of `held_out_users`.

    Raises:
        ConfigError: `held_out_users` leaves no user to train on.
    """
    sizes = np.diff(store.user_offsets)
    graph = store.graph
    keys = store.user_keys if graph is None else graph.keys
    canaries = _NOBODY if canaries is None else canaries
    is_held_out_owner = _held_out_users(keys, seed, held_out_users, canaries)
    is_held_out_user = is_held_out_owner[: store.num_users]
    counts = _held_out_counts(sizes, held_out_examples, rule, limit)
    order: npt.NDArray[Any] = np.arange(store.num_examples)
    if rule == "random":
        starts = hashes(base(seed, "split", _EXAMPLES), store.user_keys)
        order = hashes(np.repeat(starts, sizes), store.example_keys)
    elif rule == "last":
        order = -order
    is_held_out = firsts(sizes, counts, order)
    if from_users < 1.0:
        coins = hashes(base(seed, "split", _FROM), store.user_keys)
        is_held_out &= np.repeat(coins < np.uint64(int(from_users * 2.0**64)), sizes)
    in_training_user = np.repeat(~is_held_out_user, sizes)
    is_train = in_training_user & ~is_held_out
    if graph is not None:
        is_train &= ~np.logical_or.reduceat(is_held_out_owner[graph.owners], graph.offsets[:-1])
    before = np.concatenate(([0], np.cumsum(is_train, dtype=np.int64)))
    train_sizes = np.diff(before[store.user_offsets])
    users = np.flatnonzero(train_sizes)
    if not len(users):
        raise ConfigError(
            f"data.held_out_users = {held_out_users}: every text has a held-out owner; hold out "
            "fewer users"
        )
    train_sizes = train_sizes[users]
    return Split(
        users=users,
        held_out_users=np.flatnonzero(is_held_out_user),
        held_out_examples=np.flatnonzero(in_training_user & is_held_out),
        train_examples=np.flatnonzero(is_train),
        train_offsets=np.concatenate(([0], np.cumsum(train_sizes))),
        canaries=canaries,
        held_out_owners=np.flatnonzero(is_held_out_owner) if graph is not None else _NOBODY,
    )


def _held_out_users(
    keys: Hashes, seed: int, fraction: float, canaries: Indices
) -> npt.NDArray[np.bool_]:
    """Flip a coin for each user, so that another user in the data changes no user's outcome."""
    coins = hashes(base(seed, "split", _USERS), keys)
    limits = np.full(len(keys), int(fraction * 2.0**64), np.uint64)
    limits[canaries] = 2**63
    chosen: npt.NDArray[np.bool_] = coins < limits
    if chosen.all():
        raise ConfigError(
            f"data.held_out_users = {fraction}: leaves none of the {len(keys)} users to train on"
        )
    return chosen


def _held_out_counts(sizes: Indices, fraction: float, rule: Rule, limit: int | None) -> Indices:
    """Return the number of held-out examples of each user; it depends only on the user's size."""
    shares = fraction * sizes
    # 0.1 * 30 must not round up to 4 because the float 0.1 is above a tenth.
    rounded = np.floor(shares + 0.5) if rule == "random" else np.ceil(shares - 1e-9)
    maximum = sizes - 1 if limit is None else np.minimum(sizes - 1, limit)
    counts: Indices = np.minimum(rounded.astype(np.int64), maximum)
    return counts

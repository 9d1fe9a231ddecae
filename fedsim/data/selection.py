"""Select at most `group_size` of each user's examples, for many users at once.

`select` returns indices for a round, `pool` indices for a whole run, `windows` chunks of users'
texts, and `cohort_block` a cohort's examples as one padded block of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
import numpy.typing as npt

from fedsim.data.bounding import Bounded, Bounding, Order, bound
from fedsim.data.split import Split
from fedsim.data.store import Indices, TokenStore, ranks, runs
from fedsim.data.store.rows import firsts
from fedsim.seeding import Hashes, base, hashes
from fedsim.seeding import base as hashing_base

Rule = Literal[Order, "highest-perplexity", "lowest-perplexity"]
CohortRule = Literal[Rule, "random-chunk"]
Losses = npt.NDArray[np.float32]


class SelectedExamples(NamedTuple):
    """The selected examples, user after user.

    Attributes:
        examples: store indices, int64, ascending within a user.
        counts: number of examples per user, int64, at most `group_size`.
    """

    examples: Indices
    counts: Indices


def select(
    split: Split,
    store: TokenStore,
    users: Indices,
    *,
    group_size: int,
    rule: Rule,
    base: int,
    losses: Losses | None = None,
) -> SelectedExamples:
    """Choose at most `group_size` of each user's training examples.

    Args:
        split: split of the store.
        store: the store, for lengths and keys.
        users: training users, indices of the split, int64, any order.
        group_size: maximum number of examples per user, at least 1.
        rule: "random" draws without replacement: the examples with the smallest hashes of
            (`base`, the user's key, the example's key). "longest" and "shortest" sort by length,
            the two perplexity rules by `losses`; ties are sorted by the example's key.
            "least-demand" means "random", as an example has one owner here. A user's examples do
            not depend on other users.
        base: base of the hashes; see `fedsim.seeding.base`.
        losses: losses of `split.train_examples`, in that order; not negative and not NaN.

    Raises:
        IndexError: there is no such training user.
    """
    if len(users) and not 0 <= users.min() <= users.max() < split.num_users:
        raise IndexError(f"users {users}: the split has {split.num_users} training users")
    starts = split.train_offsets[users]
    sizes = split.train_offsets[users + 1] - starts
    counts = np.minimum(sizes, group_size)
    positions = runs(starts, sizes)
    examples = split.train_examples[positions]
    keys: tuple[npt.NDArray[Any], ...] = (store.example_keys[examples],)
    if rule in ("random", "least-demand"):
        seeds = hashes(base, store.user_keys[split.users[users]])
        keys = (hashes(np.repeat(seeds, sizes), *keys),)
    else:
        if rule in ("longest", "shortest"):
            values: npt.NDArray[Any] = store.lengths(examples)
        elif losses is None:
            raise ValueError("losses: selection by perplexity needs the examples' losses")
        else:
            values = losses[positions]
        keys = (-values if rule in ("longest", "highest-perplexity") else values, *keys)
    return SelectedExamples(examples[firsts(sizes, counts, *keys)], counts)


def pool(
    split: Split,
    store: TokenStore,
    *,
    group_size: int,
    rule: Rule,
    seed: int,
    losses: Losses | None = None,
    bounding: Bounding = "greedy",
) -> Bounded:
    """Choose the pool of example-level sampling, once for the whole run.

    The pool has at most `group_size` examples per training user (Charles et al. 2024, Alg. 1). If
    texts have several owners, it has at most `group_size` examples per owner.

    Args:
        split: split of the store.
        store: store of the run.
        group_size: maximum number of examples per owner, at least 1.
        rule: see `select`; with several owners the order for `bounding`, not by perplexity.
        seed: seed of the run.
        losses: see `select`.
        bounding: rule for texts with several owners, see `fedsim.data.bounding.bound`.

    Raises:
        ValueError: selection by perplexity of texts with several owners.
    """
    start = hashing_base(seed, "pooling", 0)
    examples = split.train_examples
    if store.graph is not None:
        if rule not in get_args(Order):
            raise ValueError(f"rule = {rule!r}: texts with several owners forbid this rule")
        return bound(
            store,
            examples,
            group_size=group_size,
            rule=bounding,
            order=cast(Order, rule),
            base=start,
        )
    everyone = np.arange(split.num_users)
    kept, _ = select(
        split, store, everyone, group_size=group_size, rule=rule, base=start, losses=losses
    )
    dropped = {"examples beyond a user's group_size": len(examples) - len(kept)}
    return Bounded(kept, dropped)


def windows(
    split: Split,
    store: TokenStore,
    users: Indices,
    *,
    group_size: int,
    base: int,
) -> tuple[Indices, Indices, Indices]:
    """Return one window per user, cut into the fewest sequences, of nearly equal length.

    A window has `group_size` times the store's sequence length in training tokens, or all tokens
    of a user with fewer. Its start is uniform (to 2⁻⁴⁰). It depends only on `base`, the user's key
    and the user's text in store order.

    Args:
        split: split of the store.
        store: store with the tokens.
        users: training users, indices of the split, int64, in output order.
        group_size: maximum number of sequences per user.
        base: base of the hashes; see `fedsim.seeding.base`.

    Returns:
        tokens: (sequences, longest sequence) int64, padded with 0 on the right.
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
    """Return at most `size` consecutive tokens of a user's training text, (tokens,) int64."""
    examples = split.user_examples(user)
    ends = np.cumsum(store.lengths(examples))
    total = int(ends[-1])
    start = hashed % (total - size + 1) if total > size else 0
    stop = min(total, start + size)
    first, last = np.searchsorted(ends, [start, stop - 1], side="right")
    text = np.concatenate([store.example(int(example)) for example in examples[first : last + 1]])
    before = start - (int(ends[first - 1]) if first else 0)
    window: Indices = text[before : before + stop - start].astype(np.int64)
    return window


@dataclass(frozen=True, eq=False)
class CohortBlock:
    """The examples of a cohort's users.

    Attributes:
        tokens: (examples, longest example) int64, padded with 0 on the right.
        lengths: (examples,) int64.
        offsets: (users + 1,) int64, user i of the cohort has rows offsets[i] : offsets[i + 1].
        users: (examples,) uint64, the user's key of each row.
        keys: (examples,) uint64, the example's key of each row, or its number in a window.
    """

    tokens: Indices
    lengths: Indices
    offsets: Indices
    users: Hashes
    keys: Hashes


def cohort_block(
    split: Split,
    store: TokenStore,
    users: Indices,
    *,
    group_size: int,
    rule: CohortRule,
    seed: int,
    round: int,
    losses: Losses | None = None,
) -> CohortBlock:
    """Return at most `group_size` training examples of each user, selected for a round.

    A user's examples depend only on the seed, the round, the user's key and the user's own
    training examples.

    Args:
        split: split of the store.
        store: store with the tokens.
        users: training users, indices of the split, int64, in output order.
        group_size: maximum number of examples per user.
        rule: selection rule; see `select`, and `windows` for "random-chunk".
        seed: seed of the run.
        round: the round, from 0.
        losses: losses for selection by perplexity; see `select`.
    """
    start = base(seed, "selection", round)
    names = store.user_keys[split.users[users]]
    if rule == "random-chunk":
        tokens, lengths, offsets = windows(split, store, users, group_size=group_size, base=start)
        counts = np.diff(offsets)
        keys = ranks(counts).astype(np.uint64)
        return CohortBlock(tokens, lengths, offsets, np.repeat(names, counts), keys)
    chosen = select(
        split,
        store,
        users,
        group_size=group_size,
        rule=rule,
        base=start,
        losses=losses,
    )
    tokens, lengths = store.padded(chosen.examples)
    offsets = np.concatenate(([0], np.cumsum(chosen.counts)))
    keys = store.example_keys[chosen.examples]
    return CohortBlock(tokens, lengths, offsets, np.repeat(names, chosen.counts), keys)

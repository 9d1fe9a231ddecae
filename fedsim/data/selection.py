"""Select at most `group_size` of each user's examples, for many users at once.

`select` returns their indices, `pool` those of a whole run, `windows` chunks of users' texts, and
`cohort_block` a cohort's examples as one padded block of tokens.
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

Rule = Order | Literal["highest-perplexity", "lowest-perplexity"]
Losses = npt.NDArray[np.float32]


class SelectedExamples(NamedTuple):
    """The examples that users bring, user after user.

    Attributes:
        examples: store indices, int64, ascending within a user.
        counts: per user how many, int64, at most `group_size`.
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
        split: of the store.
        store: where the lengths are.
        users: training users, indices of the split, int64, any order.
        group_size: most examples of a user, at least 1.
        rule: "random" draws without replacement: the examples with the smallest hashes of
            (`base`, the user's key, the example's key). "longest" and "shortest" go by length, the
            two of perplexity by `losses`, and all four among equals by the example's key.
            "least-demand" is "random": here an example has one owner. A user's examples do not
            depend on the other users of the call or of the store.
        base: of the hashes; see `hashing.base`.
        losses: of `split.train_examples`, in their order; not negative and not NaN.

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
            raise ValueError("losses: a choice by perplexity needs the examples' losses")
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
    """Choose once, for the whole run, the examples that example-level sampling flips its coins on.

    Each training user's at most `group_size` (Charles et al. 2024, Alg. 1); where texts have
    several owners, examples of which no owner has more. So no owner is in the pool with more than
    `group_size` examples, whatever the coins.

    Args:
        split: of the store.
        store: of the run.
        group_size: most examples of an owner, at least 1.
        rule: as of `select`; with several owners the order of `bounding`, not by perplexity.
        seed: of the run.
        losses: as of `select`.
        bounding: with several owners, as of `fedsim.data.bounding.bound`.

    Raises:
        ValueError: a choice by perplexity, and texts with several owners.
    """
    start = hashing_base(seed, "pooling", 0)
    examples = split.train_examples
    if store.graph is not None:
        if rule not in get_args(Order):
            raise ValueError(f"rule = {rule!r}: texts with several owners are chosen by no text")
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
    text = np.concatenate([store.example(int(example)) for example in examples[first : last + 1]])
    before = start - (int(ends[first - 1]) if first else 0)
    window: Indices = text[before : before + stop - start].astype(np.int64)
    return window


CohortRule = Rule | Literal["random-chunk"]


@dataclass(frozen=True, eq=False)
class CohortBlock:
    """The examples of a cohort's users.

    Attributes:
        tokens: (examples, longest of them) int64, padded with 0 on the right.
        lengths: (examples,) int64.
        offsets: (users + 1,) int64: user i of the cohort has rows offsets[i] : offsets[i + 1].
        users: (examples,) uint64, the key of the user that each row is of.
        keys: (examples,) uint64, each row's identity: its example's key, or its number in a window.
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
    """Return at most `group_size` training examples of each user, chosen in each round.

    A user's examples are a function of the seed, the round, the user's key and the user's own
    training examples alone.

    Args:
        split: of the store.
        store: where the tokens are.
        users: training users, indices of the split, int64, in the order wanted.
        group_size: most examples of a user.
        rule: how they are chosen; see `select`, and `windows` for "random-chunk".
        seed: of the run.
        round: from 0.
        losses: what a choice by perplexity goes by; see `select`.
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

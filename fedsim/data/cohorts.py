"""A cohort's examples as one block: who is drawn brings what, padded, ready for a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedsim.data.building.arrivals import ranks
from fedsim.data.keys import Hashes, base
from fedsim.data.selection import Losses, Rule, select, windows
from fedsim.data.split import Split
from fedsim.data.store import Indices, TokenStore

CohortRule = Rule | Literal["random-chunk"]


@dataclass(frozen=True, eq=False)
class CohortBlock:
    """What the users of a cohort bring.

    Attributes:
        tokens: (examples, longest of them) int64, padded with 0 on the right.
        lengths: (examples,) int64.
        offsets: (users + 1,) int64: user i of the cohort has rows offsets[i] : offsets[i + 1].
        users: (examples,) uint64, the key of the user that each row is of.
        keys: (examples,) uint64, what each row is: its example's key, or its number in a window.
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
    """Return at most `group_size` training examples of each user, chosen anew each round.

    What a user brings is a function of the seed, the round, the user's key and the user's own
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

"""A cohort's examples as one block: who is drawn brings what, padded, ready for a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedsim.data.hashing import base
from fedsim.data.selection import Losses, Rule, select
from fedsim.data.split import Split
from fedsim.data.store import Indices, TokenStore
from fedsim.data.windows import windows

CohortRule = Rule | Literal["random-chunk"]


@dataclass(frozen=True, eq=False)
class CohortBlock:
    """What the users of a cohort bring.

    Attributes:
        tokens: (examples, longest of them) int64, padded with 0 on the right.
        lengths: (examples,) int64.
        offsets: (users + 1,) int64: user i of the cohort has rows offsets[i] : offsets[i + 1].
    """

    tokens: Indices
    lengths: Indices
    offsets: Indices


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

    What a user brings is a function of (seed, round, user) alone.

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
    if rule == "random-chunk":
        return CohortBlock(*windows(split, store, users, group_size=group_size, base=start))
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
    return CohortBlock(tokens, lengths, np.concatenate(([0], np.cumsum(chosen.counts))))

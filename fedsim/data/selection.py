"""Which of a user's examples take part: at most `group_size` of them."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from fedsim.data.split import Split
from fedsim.data.store import Indices, TokenStore
from fedsim.seeding import stream

Rule = Literal["random", "longest", "shortest"]


def select(
    examples: Indices,
    lengths: Indices,
    group_size: int,
    rule: Rule,
    generator: np.random.Generator,
) -> Indices:
    """Return at most `group_size` of a user's examples, in the order they were given.

    Args:
        examples: indices of one user's examples, int64, ascending.
        lengths: their numbers of tokens, the same shape.
        group_size: most examples to return, at least 1.
        rule: "random" draws without replacement; "longest" and "shortest" go by length and, among
            equals, take the smaller index.
        generator: of this user alone; only "random" draws from it, and only if there is a choice.
    """
    if len(examples) <= group_size:
        return examples
    if rule == "random":
        places = generator.choice(len(examples), size=group_size, replace=False)
    else:
        key = -lengths if rule == "longest" else lengths
        places = np.argsort(key, kind="stable")[:group_size]
    return examples[np.sort(places)]


class Pool(NamedTuple):
    """The capped pool of example-level sampling.

    Attributes:
        examples: store indices, int64, ascending.
        num_dropped: training examples that the cap kept out.
    """

    examples: Indices
    num_dropped: int


def pool(split: Split, store: TokenStore, group_size: int, rule: Rule, seed: int) -> Pool:
    """Choose once, for the whole run, each training user's at most `group_size` examples.

    This is the set that example-level sampling flips its coins on (Charles et al. 2024, Alg. 1):
    no user is in it with more than `group_size` examples, whatever the coins.
    """
    chosen = []
    for user, store_user in enumerate(split.users.tolist()):
        examples = split.user_examples(user)
        if len(examples) > group_size:  # making a generator is what takes time here
            generator = stream(seed, "pooling", 0, store_user)
            examples = select(examples, store.lengths(examples), group_size, rule, generator)
        chosen.append(examples)
    examples = np.concatenate(chosen)
    return Pool(examples, len(split.train_examples) - len(examples))

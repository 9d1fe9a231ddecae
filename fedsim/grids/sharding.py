"""Cut a cohort into shards of about equal work, measured in tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedsim.execution import Keys
from fedsim.materials import Materials

if TYPE_CHECKING:  # workers make no plan, and must not wait for the import of the accounting
    from fedsim.plan import RoundPlan


def unit_tokens(plan: RoundPlan, materials: Materials) -> npt.NDArray[np.int64]:
    """Return (num_keys,) int64: the approximate number of tokens per unit and round, by key.

    An example has its length; a user at most `group_size` examples of the user's average length.
    """
    store = materials.store
    if plan.unit == "example":
        keys = np.zeros(int(plan.pool.max()) + 1, dtype=np.int64)
        keys[plan.pool] = store.lengths(plan.pool)
        return keys
    group_size = plan.task.options.get("group_size")
    if group_size is not None and plan.task.options.get("selection") == "random-chunk":
        return chunk_tokens(materials, group_size)
    return _user_tokens(materials, group_size)


def chunk_tokens(materials: Materials, group_size: int) -> npt.NDArray[np.int64]:
    """Return (num_users,) int64: number of tokens of a window over each user's text."""
    longest = int(materials.store.manifest["sequence_length"])
    return np.minimum(_user_tokens(materials, None), group_size * longest)


def most_tokens_per_unit(materials: Materials, group_size: int | None) -> int:
    """Return the maximum number of tokens of a unit, by the config only.

    This chooses the engine. The users' texts must not: engines clip with different margins, so a
    user who changed the engine would change every other user's update.

    Args:
        materials: has the store, with the maximum length of an example.
        group_size: maximum number of examples per user; None for units of one example.
    """
    return int(materials.store.manifest["sequence_length"]) * (group_size or 1)


def _user_tokens(materials: Materials, group_size: int | None) -> npt.NDArray[np.int64]:
    """Return (num_users,) int64; a user has at least one training example."""
    store, split = materials.store, materials.split
    sizes = split.user_sizes
    tokens = np.add.reduceat(store.lengths(split.train_examples), split.train_offsets[:-1])
    limit = group_size or int(sizes.max())
    return np.asarray(tokens * np.minimum(sizes, limit) // sizes, dtype=np.int64)


def even_shards(cohort: Keys, tokens: npt.NDArray[np.int64], count: int) -> list[Keys]:
    """Cut a cohort, in its order, into at most `count` shards of about equal work.

    A shard ends where the running sum of work passes the next multiple of the mean. A unit without
    tokens counts as one token. An empty cohort gives no shard.

    Examples:
        >>> tokens = np.array([8, 1, 1, 1, 1, 4])
        >>> [piece.tolist() for piece in even_shards(np.arange(6), tokens, 2)]
        [[0], [1, 2, 3, 4, 5]]
    """
    if len(cohort) == 0:
        return []
    work = np.cumsum(np.maximum(tokens[cohort], 1))
    bounds = work[-1] * np.arange(1, count) / count
    cuts = np.unique(np.searchsorted(work, bounds, side="left") + 1)
    return [piece for piece in np.split(cohort, cuts[cuts < len(cohort)]) if len(piece)]

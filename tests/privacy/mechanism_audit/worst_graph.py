"""What bounding leaves of an owner who has far more texts than the group size, by the real code.

The worst owner for a rule that looks at authors: one who wrote nothing, and to whom many authors
wrote one text each. No author has more than a group size of texts, and the listener has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedsim.data.bounding import Bounded, Bounding, Order
from fedsim.data.building.build import build_store
from fedsim.data.building.tokenise import BatchTokeniser
from fedsim.data.selection import pool
from fedsim.data.sources.records import Record
from fedsim.data.split import split_store
from fedsim.data.store import Indices

AUTHORS = 32  # each wrote one text to the listener; one more wrote to nobody

Pooling = Callable[..., Bounded]


def listeners_share(
    group_size: int,
    pooling: Pooling = pool,
    *,
    bounding: Bounding = "greedy",
    order: Order = "random",
) -> tuple[Indices, Indices]:
    """Build the store, pool its examples and look what the listener has of them.

    Args:
        group_size: most pooled examples of an owner.
        pooling: makes the pool, as `fedsim.data.selection.pool` does.
        bounding: the rule, as of it.
        order: in which examples are looked at, as of it.

    Returns:
        Pooled examples, and those of them that the listener owns: store indices, int64, ascending.
    """
    records: list[Record] = [
        Record(f"author {number}", "a text", owners=("listener",)) for number in range(AUTHORS)
    ]
    records.append(Record("other", "a text"))
    with TemporaryDirectory() as folder:
        store = build_store(
            records,
            BatchTokeniser(_encode, 256, 8, "truncate"),
            Path(folder) / "store",
            tokenizer_fingerprint="bytes",
            source="a listener",
            co_owned=True,
        )
        kept = pooling(
            split_store(store, 0, 0.0, 0.0),
            store,
            group_size=group_size,
            rule=order,
            seed=0,
            bounding=bounding,
        ).examples
        if store.graph is None:
            raise ValueError("the store has no graph of owners")
        return kept, np.intersect1d(kept, store.graph.examples_of(store.num_users))


def _encode(texts: Sequence[str]) -> list[list[int]]:
    return [list(text.encode()) for text in texts]

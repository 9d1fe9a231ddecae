"""Statistics of a store: sizes of users and texts, and counts of what was dropped."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.data.bounding import Bounding, Order, bound
from fedsim.data.doubtful_names import doubtful_names
from fedsim.data.store import OwnerGraph, TokenStore

PRIVATE_NOTE = (
    "These numbers are computed on private data and are not protected by the privacy guarantee: do "
    "not publish them; if you tune by them, say so."
)
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def inspect_store(store: TokenStore) -> dict[str, Any]:
    """Return the output of `fedsim data inspect --json`; see docs/data.md for the keys.

    The quantile at level p is the smallest size that at least a share p does not exceed.
    """
    sizes = np.diff(store.user_offsets)
    lengths = store.lengths(np.arange(store.num_examples))
    tokens = np.add.reduceat(lengths, store.user_offsets[:-1])
    return {
        **({} if store.graph is None else {"owners": _owners(store, store.graph)}),
        "store": str(store.path),
        "source": store.manifest["source"],
        "users": store.num_users,
        "doubtful_names": [doubt._asdict() for doubt in doubtful_names(store)],
        "examples": store.num_examples,
        "tokens": store.num_tokens,
        "loss_on": store.manifest["loss_on"],
        "counted_tokens": store.num_counted,
        "sequence_length": store.manifest["sequence_length"],
        "cutting": store.manifest["cutting"],
        "mean_examples_per_user": float(sizes.mean()),
        "quantiles": {
            "examples_per_user": _quantiles(sizes),
            "tokens_per_user": _quantiles(tokens),
            "tokens_per_example": _quantiles(lengths),
        },
        "group_size": group_sizes(sizes),
        "dropped": store.manifest["dropped"],
        "note": PRIVATE_NOTE,
    }


_KEPT_FOR = (1, 2, 4, 8, 16, 32, 64, 128)


_SHOWN: tuple[tuple[Bounding, Order], ...] = (
    ("greedy", "least-demand"),
    ("greedy", "random"),
    ("random", "random"),
)


def _owners(store: TokenStore, graph: OwnerGraph) -> dict[str, Any]:
    """Return owners per example, examples per owner, and the examples kept per group size."""
    everything = np.arange(store.num_examples)
    degrees = graph.degrees(everything)

    def kept(size: int, rule: Bounding, order: Order) -> int:
        chosen = bound(store, everything, group_size=size, rule=rule, order=order, base=0)
        return len(chosen.examples)

    return {
        "owners": graph.num_owners,
        "wrote_nothing": graph.num_owners - store.num_users,
        "owners_per_example": _quantiles(np.diff(graph.offsets)),
        "examples_per_owner": _quantiles(degrees[degrees > 0]),
        "kept": [
            {"group_size": size, **{f"{r} {order}": kept(size, r, order) for r, order in _SHOWN}}
            for size in _KEPT_FOR
            if size <= 2 * degrees.max()
        ],
    }


def group_sizes(sizes: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Return the papers' heuristic group size for users of these sizes, and the share it keeps.

    For example-level sampling it is the median size, rounded up (Charles et al. 2024, App. H): half
    of the users keep all examples. User-level sampling has no heuristic by size: App. I's Alg. 3
    needs the norms of users' gradients.
    """
    median = int(np.ceil(np.median(sizes)))
    num_kept = int(np.minimum(sizes, median).sum())
    return {
        "els_median": median,
        "els_examples_kept": num_kept,
        "els_part_kept": num_kept / int(sizes.sum()),
        "note": "computed on private data, not differentially private; declare the group size "
        "as public, or choose it on public data",
    }


def _quantiles(values: npt.NDArray[np.int64]) -> dict[str, int]:
    quantiles = np.quantile(values, QUANTILES, method="inverted_cdf")
    return {f"{level:g}": int(value) for level, value in zip(QUANTILES, quantiles, strict=True)}

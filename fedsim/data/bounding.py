"""Keep at most `group_size` examples per owner, for texts with several owners.

The kept examples depend only on the owner graph and the order, not on the contents of texts. So
changing one owner's texts does not change which other texts are kept. Ganesh et al. 2025 ("It's My
Data Too", arXiv:2503.03622) state the problem and the greedy rule.
"""

from __future__ import annotations

import heapq
import importlib
import math
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fedsim.data.store import Indices, OwnerGraph, TokenStore, ranks
from fedsim.seeding import hashes

Bounding = Literal["greedy", "random", "linear-program"]
Order = Literal["random", "longest", "shortest", "least-demand"]

_GROWN = 1.0 + 1e-9


class Bounded(NamedTuple):
    """The examples that a rule keeps.

    Attributes:
        examples: store indices, int64, ascending.
        dropped: number of examples left out, per reason.
    """

    examples: Indices
    dropped: dict[str, int]


def bound(
    store: TokenStore,
    examples: Indices,
    *,
    group_size: int,
    rule: Bounding,
    order: Order,
    base: int,
) -> Bounded:
    """Keep at most `group_size` examples of each owner.

    Args:
        store: store with a graph of owners.
        examples: store indices to choose from, int64, ascending.
        group_size: maximum number of kept examples per owner, at least 1.
        rule: "greedy" takes examples in order, and skips those of an owner who already has
            `group_size`. Its result is maximal. "random" lets every owner choose the first
            `group_size` of the owner's examples, and keeps examples that all their owners chose.
            "linear-program" solves the relaxation with fractional examples, then runs "greedy" by
            descending fraction.
        order: order of the examples: "random", "longest" or "shortest"; ties are in random order.
            "least-demand" (with "greedy" only) takes the example with the smallest sum, over its
            owners, of remaining examples divided by remaining room. So texts with few owners, and
            owners with few texts, come first. With other rules it means "random".
            "linear-program" uses the order among equal fractions.
        base: base of the hashes for a random order; see `fedsim.seeding.base`.

    Raises:
        ValueError: the store has no graph, or `group_size` is less than 1.
    """
    if store.graph is None or group_size < 1:
        raise ValueError(f"group_size = {group_size}: give at least 1, and a store with a graph")
    wanted = _Wanted.of(store.graph, examples, group_size)
    coins = hashes(base, store.example_keys[examples])
    sign = {"longest": -1, "shortest": 1}.get(order, 0)
    parts = wanted.parts().round(6) if rule == "linear-program" else np.zeros(len(examples))
    first_to_last = np.lexsort((coins, sign * store.lengths(examples), -parts))
    if rule == "random":
        kept = wanted.named_by_all(first_to_last)
    elif order == "least-demand" and rule == "greedy":
        kept = wanted.least_demand(first_to_last)
    else:
        kept = wanted.greedy(first_to_last)
    chosen = examples[kept]
    return Bounded(chosen, _reasons(store.graph, chosen, examples[~kept], group_size, rule))


def most_examples(graph: OwnerGraph, examples: Indices, group_size: int) -> float:
    """Return an upper bound on the number of kept examples: the linear program's optimum."""
    return float(_Wanted.of(graph, examples, group_size).parts().sum())


class _Wanted(NamedTuple):
    """Examples with their binding owners: owners of more than `group_size` of the examples.

    Attributes:
        counts: (examples,) number of binding owners of each example, int64.
        owners: the binding owners, example after example, numbered from 0.
        demand: (owners,) number of examples of each binding owner.
        group_size: maximum number of kept examples per owner.
    """

    counts: Indices
    owners: Indices
    demand: Indices
    group_size: int

    @classmethod
    def of(cls, graph: OwnerGraph, examples: Indices, group_size: int) -> _Wanted:
        counts, owners = graph.of(examples)
        degrees = np.bincount(owners, minlength=graph.num_owners)
        binding = degrees > group_size
        inside = binding[owners]
        of_example = np.repeat(np.arange(len(examples)), counts)[inside]
        numbers = np.cumsum(binding) - 1
        return cls(
            np.bincount(of_example, minlength=len(examples)).astype(np.int64),
            numbers[owners[inside]],
            degrees[binding].astype(np.int64),
            group_size,
        )

    @property
    def of_example(self) -> Indices:
        """The example of each entry of `owners`, numbered from 0."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def by_example(self) -> list[list[int]]:
        """Return the owners of each example."""
        owners, ends = self.owners.tolist(), np.cumsum(self.counts).tolist()
        return [owners[start:end] for start, end in pairwise([0, *ends])]

    def greedy(self, order: Indices) -> npt.NDArray[np.bool_]:
        room, owners = [self.group_size] * len(self.demand), self.by_example()
        kept = np.zeros(len(order), np.bool_)
        for example in order.tolist():
            if all(room[owner] for owner in owners[example]):
                kept[example] = True
                for owner in owners[example]:
                    room[owner] -= 1
        return kept

    def least_demand(self, order: Indices) -> npt.NDArray[np.bool_]:
        """Return which examples are kept in order of least demand, ties in `order`.

        A heap holds each example's demand at insertion. If the demand has grown since, the example
        goes back into the heap. Falling demands, after an example is left out, are ignored.
        """
        room, left = [self.group_size] * len(self.demand), self.demand.tolist()
        owners = self.by_example()
        ratios = (self.demand / self.group_size)[self.owners]
        sums = np.bincount(self.of_example, ratios, minlength=len(order))
        heap = [
            (float(sums[example]), rank, example) for rank, example in enumerate(order.tolist())
        ]
        heapq.heapify(heap)
        kept = np.zeros(len(order), np.bool_)
        while heap:
            before, rank, example = heap[0]
            mine = owners[example]
            fits = all(room[owner] for owner in mine)
            if fits:
                now = math.fsum(left[owner] / room[owner] for owner in mine)
                if now > before * _GROWN:
                    heapq.heapreplace(heap, (now, rank, example))
                    continue
            heapq.heappop(heap)
            kept[example] = fits
            for owner in mine:
                room[owner] -= fits
                left[owner] -= 1
        return kept

    def named_by_all(self, order: Indices) -> npt.NDArray[np.bool_]:
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        by_owner = np.lexsort((place[self.of_example], self.owners))
        rank = np.empty(len(self.owners), np.int64)
        rank[by_owner] = ranks(self.demand)
        named = np.bincount(self.of_example, rank < self.group_size, minlength=len(order))
        kept: npt.NDArray[np.bool_] = named == self.counts
        return kept

    def parts(self) -> npt.NDArray[np.float64]:
        """Return each example's fraction in the relaxation: maximal sum, `group_size` per owner."""
        if not len(self.demand):
            return np.ones(len(self.counts))
        shape = len(self.demand), len(self.counts)
        # Imported by name: only this rule needs it, and its type stubs lack sparse tables.
        sparse: Any = importlib.import_module("scipy.sparse")
        optimize: Any = importlib.import_module("scipy.optimize")
        table = sparse.csr_matrix(
            (np.ones(len(self.owners)), (self.owners, self.of_example)), shape
        )
        solution = optimize.linprog(
            -np.ones(len(self.counts)),
            A_ub=table,
            b_ub=np.full(len(self.demand), float(self.group_size)),
            bounds=(0.0, 1.0),
            method="highs",
        )
        if solution.x is None:
            raise RuntimeError(f"the linear program was not solved: {solution.message}")
        parts: npt.NDArray[np.float64] = solution.x
        return parts


def _reasons(
    graph: OwnerGraph, kept: Indices, left: Indices, group_size: int, rule: Bounding
) -> dict[str, int]:
    """Return the number of examples left out because their user, or another owner, is full."""
    if rule == "random":
        return {"examples that not all their owners drew": len(left)}
    full = graph.degrees(kept) >= group_size
    counts, owners = graph.of(left)
    by_user = full[owners[np.cumsum(counts) - counts]]
    return {
        "examples beyond a user's group_size": int(by_user.sum()),
        "examples beyond another owner's group_size": int((~by_user).sum()),
    }

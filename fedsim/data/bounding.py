"""Keep examples of which no owner has more than `group_size`, where texts have several owners.

A set of kept examples is a function of the owner graph, of the order, and of nothing that a text
says; so who owns what decides who takes part, and exchanging one owner's texts moves only those.
Ganesh et al. 2025 ("It's My Data Too", arXiv:2503.03622) state the problem and the greedy rule.
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
        dropped: a reason to the number of examples that it kept out.
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
    """Keep examples of which no owner has more than `group_size`.

    Args:
        store: with a graph of owners.
        examples: to choose from, store indices, int64, ascending.
        group_size: most kept examples of an owner, at least 1.
        rule: "greedy" takes one example after the other, if none of its owners has `group_size`
            by then: nothing can be added to what it keeps. "random" lets every owner name
            the first `group_size` of their examples, and keeps what all its owners named.
            "linear-program" solves the relaxation in which examples are kept in parts, and goes on
            as "greedy", the largest parts first.
        order: in which examples are looked at: "random", or by length, equals in random order.
            "least-demand" takes the example next whose owners need their room least: with the least
            sum, over its owners, of the examples that they have left over the room that they have
            left. So it takes texts with few owners first, and owners with few texts. To the other
            rules, of which only "greedy" knows demands, it is "random"; "linear-program" goes by
            the order among examples of which it keeps equal parts.
        base: of the hashes that a random order goes by; see `hashing.base`.

    Raises:
        ValueError: a store without a graph, or `group_size` is less than 1.
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
    """Return a number of examples that no bounded set exceeds: the linear program's optimum."""
    return float(_Wanted.of(graph, examples, group_size).parts().sum())


class _Wanted(NamedTuple):
    """Examples with those of their owners who have more than `group_size`: only they are bounded.

    Attributes:
        counts: (examples,) how many such owners each has, int64.
        owners: those owners, example after example, numbered from 0.
        demand: (owners,) how many of the examples each of them has.
        group_size: most kept examples of an owner.
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
        """The example that each of `owners` is of, numbered from 0."""
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
        """Return what is kept where the least demanded is taken next, equals in `order`.

        A heap with demands as they were when an example was put in: one whose demand has grown
        since goes back. Demands fall too, where an example is left out, and that is not looked for.
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
        """Return the part of each example in the relaxation: most in all, `group_size` an owner."""
        if not len(self.demand):
            return np.ones(len(self.counts))
        shape = len(self.demand), len(self.counts)
        # Imported by name: only this rule needs it, and its types know no sparse table.
        sparse: Any = importlib.import_module("scipy.sparse")
        optimize: Any = importlib.import_module("scipy.optimize")
        table = sparse.csr_matrix(
            (np.ones(len(self.owners)), (self.owners, self.of_example)), shape
        )
        found = optimize.linprog(
            -np.ones(len(self.counts)),
            A_ub=table,
            b_ub=np.full(len(self.demand), float(self.group_size)),
            bounds=(0.0, 1.0),
            method="highs",
        )
        if found.x is None:
            raise RuntimeError(f"the linear program was not solved: {found.message}")
        parts: npt.NDArray[np.float64] = found.x
        return parts


def _reasons(
    graph: OwnerGraph, kept: Indices, left: Indices, group_size: int, rule: Bounding
) -> dict[str, int]:
    """Return why examples were left out: their user has `group_size` examples, or another owner."""
    if rule == "random":
        return {"examples that not all their owners drew": len(left)}
    full = graph.degrees(kept) >= group_size
    counts, owners = graph.of(left)
    by_user = full[owners[np.cumsum(counts) - counts]]
    return {
        "examples beyond a user's group_size": int(by_user.sum()),
        "examples beyond another owner's group_size": int((~by_user).sum()),
    }

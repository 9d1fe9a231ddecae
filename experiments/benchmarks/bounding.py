"""Benchmark contribution bounding: kept examples of each rule, and time and memory at full size.

Graphs are synthetic: the number of texts of an owner is log-normal, and a text has one owner plus a
Poisson number of other owners. Each rule bounds 20 graphs of 10,000 examples; the results are
compared with the optimum of the linear program, an upper bound. One graph of a million examples and
100,000 owners is built as a store by the real builder and bounded in its own process. The kept
examples of each owner are recounted from the store's files.

`python -m fedsim.experiments.benchmarks.bounding FOLDER EXAMPLES OWNERS` starts that process.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from fedsim.data.bounding import Bounding, Order, bound, most_examples
from fedsim.data.building.build import build_store
from fedsim.data.building.tokenise import BatchTokeniser
from fedsim.data.sources.records import Record
from fedsim.data.store import TokenStore
from fedsim.experiments.benchmarks.timing import Row, in_own_process
from fedsim.utils import files as paths
from fedsim.utils.machine import peak_memory_bytes

_GRAPHS, _EXAMPLES, _OWNERS = 20, 10_000, 1_000
_OTHERS = (0.5, 1.0, 2.0)  # mean number of owners besides the user, by graph in turn
_GROUP_SIZES = (4, 16)
_LARGE = (1_000_000, 100_000)
_SHOWN: tuple[tuple[Bounding, Order], ...] = (
    ("greedy", "least-demand"),
    ("greedy", "random"),
    ("random", "random"),
    ("linear-program", "random"),
)


def run(graphs: int = _GRAPHS, large: tuple[int, int] = _LARGE) -> list[Row]:
    """Return a row for each group size and rule over all graphs, and the large graph's rows."""
    paths.cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=paths.cache_dir(), prefix="bench-bounding-") as name:
        folder = Path(name)
        stores = [_store(folder / str(n), n, _EXAMPLES, _OWNERS) for n in range(graphs)]
        rows = [
            _compared(stores, size, rule, order) for size in _GROUP_SIZES for rule, order in _SHOWN
        ]
        found = in_own_process(__name__, folder / "large", *large)
    return [*rows, *(_row(case, details) for case, details in found.items())]


def _row(case: str, details: dict[str, Any]) -> Row:
    seconds = float(details.pop("seconds"))
    return Row(benchmark="bounding", case=case, engine="fedsim", seconds=seconds, details=details)


def _compared(stores: Sequence[TokenStore], size: int, rule: Bounding, order: Order) -> Row:
    parts, seconds = [], 0.0
    for store in stores:
        everything = np.arange(store.num_examples)
        assert store.graph is not None  # noqa: S101  (for the type checker)
        most = most_examples(store.graph, everything, size)
        started = time.perf_counter()
        kept = bound(store, everything, group_size=size, rule=rule, order=order, base=1)
        seconds += time.perf_counter() - started
        _check(store, kept.examples, size)
        parts.append(len(kept.examples) / most)
    details = {
        "group_size": size,
        "graphs": len(stores),
        "examples": _EXAMPLES,
        "least_part_of_optimum": min(parts),
        "mean_part_of_optimum": float(np.mean(parts)),
        "seconds": seconds / len(stores),
    }
    return _row(f"group size {size}, {rule}, {order}", details)


def _check(store: TokenStore, kept: npt.NDArray[np.int64], size: int) -> int:
    """Count each owner's kept examples from the files, and return the maximum."""
    offsets = np.load(store.path / "example_owner_offsets.npy").tolist()
    owners = np.load(store.path / "example_owners.npy").tolist()
    counts: dict[int, int] = {}
    for example in kept.tolist():
        for owner in set(owners[offsets[example] : offsets[example + 1]]):
            counts[owner] = counts.get(owner, 0) + 1
    if (most := max(counts.values())) > size:
        raise RuntimeError(f"an owner has {most} examples, more than {size}")
    return most


def _records(seed: int, examples: int, owners: int) -> Iterator[Record]:
    rng = np.random.default_rng(seed)
    shares = np.cumsum(rng.lognormal(0.0, 1.0, owners))
    others = _OTHERS[seed % len(_OTHERS)]
    for _ in range(0, examples, 10_000):
        counts = 1 + rng.poisson(others, min(10_000, examples))
        drawn = np.searchsorted(shares, rng.random(int(counts.sum())) * shares[-1]).tolist()
        first = 0
        for count in counts.tolist():
            user, *beside = (f"owner-{number}" for number in drawn[first : first + count])
            yield Record(user, "xy", owners=tuple(beside))
            first += count


def _encode(texts: Sequence[str]) -> list[list[int]]:
    return [[0, 1] for _ in texts]


def _store(folder: Path, seed: int, examples: int, owners: int) -> TokenStore:
    return build_store(
        _records(seed, examples, owners),
        BatchTokeniser(_encode, 2, 2, "split"),
        folder,
        tokenizer_fingerprint="0" * 64,
        source="made up",
        co_owned=True,
    )


def _large(folder: Path, examples: int, owners: int) -> dict[str, Any]:
    """Build a store and bound it by greedy; return seconds and peak memory after each step."""
    started = time.perf_counter()
    store = _store(folder, 2, examples, owners)
    built = {"seconds": time.perf_counter() - started, "peak_bytes": peak_memory_bytes()}
    assert store.graph is not None  # noqa: S101  (for the type checker)
    pairs = len(store.graph.owners)
    found = {f"build, {examples:,} examples": {**built, "owners": owners, "pairs": pairs}}
    for order in get_args(Order):
        if order not in ("random", "least-demand"):
            continue
        started = time.perf_counter()
        everything = np.arange(store.num_examples)
        kept = bound(store, everything, group_size=8, rule="greedy", order=order, base=1)
        details = {
            "seconds": time.perf_counter() - started,
            "peak_bytes": peak_memory_bytes(),
            "kept": len(kept.examples),
        }
        details["most_of_an_owner"] = _check(store, kept.examples, 8)
        found[f"{examples:,} examples, greedy, {order}"] = details
    return found


if __name__ == "__main__":
    print(json.dumps(_large(Path(sys.argv[1]), *map(int, sys.argv[2:]))))  # noqa: T201  (for `run`)

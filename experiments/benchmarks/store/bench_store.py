"""Times of a full-size token store: building, opening, and cohorts (also with `datasets`).

The store is synthetic (`sample.py`): 342,477 users and 20.5 million examples with a long tail. The
real builder builds it from (user, text) records with almost free encoding. A cohort is one of ULS:
Poisson-sampled users, up to 16 examples of each without replacement, in one padded int64 block.
`datasets` reads the same rows as arrays from one Arrow file, in the same order, without padding.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from fedsim.data.selection import CohortBlock, cohort_block, select
from fedsim.data.split import split_store
from fedsim.data.store import Indices, TokenStore
from fedsim.experiments.benchmarks.store import sample
from fedsim.experiments.benchmarks.timing import Row, in_own_process, interleaved, row_of
from fedsim.seeding import base, stream
from fedsim.utils import files as paths

_COHORT = 4_096
_GROUP_SIZE = 16
_REPETITIONS = 18
_IN_A_ROW = 3
_ROWS_AT_ONCE = 1_000  # rows of a record batch, as in `datasets`
_OPENINGS = 5
_STEPS = "fedsim.experiments.benchmarks.store.steps"


def run(users: int = sample.USERS, examples: int = sample.EXAMPLES) -> list[Row]:
    """Build, open, check and read the store; it is deleted at the end (4 GB while it runs)."""
    paths.cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=paths.cache_dir(), prefix="bench-store-") as name:
        folder = Path(name)
        built = in_own_process(_STEPS, "build", folder, users, examples)
        opened = [in_own_process(_STEPS, "open", folder, users, examples) for _ in range(_OPENINGS)]
        opened.sort(key=lambda one: float(one["seconds"]))
        return [
            _row("build", built),
            _row("open", opened[_OPENINGS // 2], repetitions=_OPENINGS),
            _row("verify", in_own_process(_STEPS, "verify", folder, users, examples)),
            *_cohorts(TokenStore.open(folder / "store"), folder),
        ]


def _row(case: str, details: dict[str, Any], **others: Any) -> Row:  # noqa: ANN401
    seconds = float(details.pop("seconds"))
    row = Row(benchmark="store", case=case, engine="fedsim", seconds=seconds, details=details)
    return {**row, **others}  # type: ignore[typeddict-item]


def _cohorts(store: TokenStore, folder: Path) -> list[Row]:
    """Measure cohorts, with other users each time, and the same rows through `datasets`.

    Some cohorts of ours are measured, then the same with `datasets`, in turns: a slow period of the
    machine affects both, and caches filled by `datasets` slow only the first of ours.
    """
    split = split_store(store, 0, 0.0, 0.0)
    expected = min(_COHORT, split.num_users // 2)
    dataset = _dataset(store, folder / "rows.arrow")
    seconds: dict[str, list[float]] = {"fedsim": [], "datasets": []}
    counts: list[int] = []
    _touch(store)
    for block in range(_REPETITIONS // _IN_A_ROW):
        rows = []
        for round in range(block * _IN_A_ROW, (block + 1) * _IN_A_ROW):
            coins = stream(0, "sampling", round).random(split.num_users)
            users = np.flatnonzero(coins < expected / split.num_users)
            draw = partial(cohort_block, split, store, users, group_size=_GROUP_SIZE, round=round)
            ours = partial(_tensor, partial(draw, rule="random", seed=0))
            seconds["fedsim"] += interleaved({"": ours}, [""])[""]
            start = base(0, "selection", round)
            choice = select(split, store, users, group_size=_GROUP_SIZE, rule="random", base=start)
            rows.append(choice.examples)
            counts.append(len(choice.examples))
        for indices in rows:
            theirs = partial(_rows_of, dataset, indices)
            seconds["datasets"] += interleaved({"": theirs}, [""])[""]
    details = {
        "expected_users": expected,
        "group_size": _GROUP_SIZE,
        "rows_in_the_mean": float(np.mean(counts)),
        "quickest_seconds": min(seconds["fedsim"]),
        "slowest_seconds": max(seconds["fedsim"]),
    }
    ratio = median(seconds["datasets"]) / median(seconds["fedsim"])
    return [
        row_of("store", "cohort", "fedsim", seconds["fedsim"], ratio=ratio, details=details),
        row_of(
            "store",
            "cohort",
            "datasets, numpy format",
            seconds["datasets"],
            ratio=1.0,
            details={"padded": False},
        ),
    ]


def _tensor(draw: Callable[[], CohortBlock]) -> torch.Tensor:
    return torch.from_numpy(draw().tokens)


def _rows_of(dataset: Any, indices: Indices) -> Any:  # noqa: ANN401  (an untyped module)
    return dataset[indices]["tokens"]


def _touch(store: TokenStore) -> None:
    """Read the store once, to load its pages into memory."""
    for first in range(0, store.num_examples, 1 << 20):
        store.padded(np.arange(first, min(first + (1 << 20), store.num_examples), 16))


def _dataset(store: TokenStore, path: Path) -> Any:  # noqa: ANN401  (an untyped module)
    """Return the store's examples as rows of `datasets`, memory-mapped, in numpy format."""
    from datasets import Dataset  # noqa: PLC0415  (slow import)

    schema = pa.schema([("tokens", pa.list_(pa.uint16()))])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for first in range(0, store.num_examples, _ROWS_AT_ONCE):
            indices = np.arange(first, min(first + _ROWS_AT_ONCE, store.num_examples))
            lengths = store.lengths(indices)
            tokens, _ = store.padded(indices)
            inside = np.arange(tokens.shape[1]) < lengths[:, None]
            values = pa.array(tokens[inside].astype(np.uint16))
            offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
            rows = pa.ListArray.from_arrays(offsets, values)
            writer.write_batch(pa.record_batch([rows], schema=schema))
    return Dataset.from_file(str(path)).with_format("numpy")

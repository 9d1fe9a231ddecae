"""Times of fedsim, pfl and Opacus on the same work, in turns on the same threads.

pfl clips and sums the same updates; before its time counts, its sum is compared with ours. Opacus
does not support all layers, so networks are rewritten for it (see `theirs.with_opacus`). Its sum is
compared with a plain loop over its own network.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
import torch

from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.tasks.fedavg import LocalSGD
from fedsim.experiments.benchmarks.engines.cases import (
    LOCAL_LEARNING_RATE,
    Case,
    Workload,
    workload,
)
from fedsim.experiments.benchmarks.engines.measured import AUTO, CLIP, Contestant
from fedsim.experiments.benchmarks.peers.install import python
from fedsim.experiments.benchmarks.peers.partner import TOLERANCE, Partner, distance
from fedsim.experiments.benchmarks.timing import Row, row_of
from fedsim.utils.machine import keep_freed_memory

OURS, PFL = "fedsim auto", "pfl"
OPACUS_MODES = ("flat", "ghost", "fast gradient clipping")
_MODELS = ("tiny-gpt", "mcmahan-lstm")
CASES = (
    *(Case("uls", model, 64, size) for model in _MODELS for size in (1, 4, 16)),
    *(Case("fedavg", model, 64, 4) for model in _MODELS),
    *(Case("els", model, 64) for model in _MODELS),
)
_MANY, _FEWER = 15, 7  # repetitions; the second if a round takes seconds


def run(cases: Sequence[Case] = CASES) -> list[Row]:
    """Return a row for each package and case; `ratio` is the speed-up of fedsim.

    Raises:
        ConfigError: the peers' environment does not exist.
        RuntimeError: a peer computed something else.
    """
    interpreter = python()
    keep_freed_memory()
    with Partner(interpreter) as partner, tempfile.TemporaryDirectory() as folder:
        versions = partner.ask(do="versions")
        return [row for case in cases for row in measured(case, partner, Path(folder), versions)]


def measured(
    case: Case, partner: Partner, folder: Path, versions: dict[str, str], repetitions: int = 0
) -> list[Row]:
    """Return the rows of a case; with `repetitions` = 0, the duration of a round decides.

    Args:
        case: the case to measure.
        partner: process of the peers.
        folder: folder to exchange weights, tokens and sums.
        versions: versions of the peers, for the rows.
        repetitions: number of repetitions of each package.
    """
    work = workload(case)
    request = _request(case, work, folder)
    if case.kind == "els":
        peers = {f"opacus {mode}": {"peer": "opacus", "mode": mode} for mode in OPACUS_MODES}
    else:
        peers = {PFL: {"peer": "pfl"}}
    rows: list[Row] = []
    for name, peer in peers.items():
        notes = partner.ask(do="prepare", **request, **peer)
        ours = Contestant(AUTO, work)
        ours()
        first = float(partner.ask(do="run")["seconds"])
        if name == PFL:
            notes["relative_difference"] = distance(partner.sum(folder / "sum.pt"), ours.total)
        elif not notes["relative_difference"] <= TOLERANCE:
            raise RuntimeError(f"{name} is {notes['relative_difference']:.1e} from its own loop")
        seconds = _in_turns(ours, partner, repetitions or (_MANY if first < 2.0 else _FEWER))
        faster = median(seconds[1]) / median(seconds[0])
        details = {
            "units": len(work.units),
            "tokens": work.num_tokens,
            "versions": versions,
            "threads": torch.get_num_threads(),
        }
        sides = (
            (OURS, seconds[0], None, {**details, "beside": name}),
            (name, seconds[1], faster, {**details, **notes}),
        )
        rows += [
            row_of("peers", case.name, engine, taken, ratio=ratio, details=more)
            for engine, taken, ratio, more in sides
        ]
    return rows


def _in_turns(
    ours: Contestant, partner: Partner, repetitions: int
) -> tuple[list[float], list[float]]:
    """Return the seconds of our repetitions and of the peer's, measured in turns."""
    mine, theirs = [], []
    for _ in range(repetitions):
        started = time.perf_counter()
        ours()
        mine.append(time.perf_counter() - started)
        theirs.append(float(partner.ask(do="run")["seconds"]))
    return mine, theirs


def _request(case: Case, work: Workload, folder: Path) -> dict[str, Any]:
    """Write weights and tokens for the peer, and return the request to it."""
    network = cast(OpenModel, work.model).module
    weights, tokens = folder / "weights.pt", folder / "tokens.npy"
    config = network.config.to_dict()  # type: ignore[operator, union-attr]
    torch.save({"config": _plain(config), "state": work.parameters}, weights)
    np.save(tokens, np.stack([_in_order(work, unit.key) for unit in work.units]))
    local = case.kind == "fedavg"
    return {
        "weights": str(weights),
        "tokens": str(tokens),
        "clip": CLIP.bound,
        "learning_rate": LOCAL_LEARNING_RATE if local else 1.0,
        "batch_size": 1 if local else None,
    }


def _in_order(work: Workload, key: int) -> np.ndarray[Any, Any]:
    """Return a user's examples in the order of local training; the peer does not shuffle."""
    unit = work.task.unit(key, 0)
    if not isinstance(work.task, LocalSGD):
        return unit.tokens.numpy()
    return unit.tokens[torch.cat([*work.task.batches(unit, 0)])].numpy()


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a config that are numbers or strings."""
    return {key: value for key, value in config.items() if isinstance(value, int | float | str)}

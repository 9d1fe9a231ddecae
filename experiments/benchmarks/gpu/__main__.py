"""Checks and times on a GPU: `python -m fedsim.experiments.benchmarks.gpu [SLICE]... --out FILE`.

`fedsim.experiments.benchmarks.page` shows the file, which is rewritten after each row. A slice
replaces only its own rows. It ends after eight minutes, so even a quarter of an hour on a GPU gives
results. If a slice fails, the file has its error, the next slice begins, and the exit status is 1.
`--list` shows the slices that the file lacks.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fedsim.errors import ConfigError
from fedsim.experiments.benchmarks.engines.networks import network
from fedsim.experiments.benchmarks.gpu.checks import device_tests, parity, resumed
from fedsim.experiments.benchmarks.gpu.speed import (
    NotMeasured,
    adapters,
    large,
    large_base,
    local_training,
    rounds,
    workers,
)
from fedsim.experiments.benchmarks.timing import Row
from fedsim.utils.files import write_atomically
from fedsim.utils.machine import collect_garbage_rarely, keep_freed_memory, machine, versions

log = logging.getLogger(__name__)

Slice = Callable[[str, bool], Iterator[Row]]
"""Generator of rows; arguments: device in torch's notation, and whether shapes are tiny."""

SLICES: Mapping[str, Slice] = {  # the least known results come first
    "350m": large,
    "gpt2": adapters,
    "fedavg": local_training,
    "rounds": rounds,
    "workers": workers,
    "llama-8b": large_base,
    "parity": parity,
    "tests": device_tests,
    "resume": resumed,
}
_SECONDS = 480  # maximum duration of a slice
_COMMAND = "python -m fedsim.experiments.benchmarks.gpu"


def measure(
    slices: Mapping[str, Slice], device: str, quick: bool, out: Path, limit: int = _SECONDS
) -> list[str]:
    """Run slices, write their rows to `out`, and return the names of failed slices.

    The last row of each slice has its seconds and, in `details["result"]`, "passed", "not
    measured" with the reason, or the error.

    Args:
        slices: slices by name.
        device: device, in torch's notation.
        quick: whether to use tiny shapes.
        out: JSON file of the rows.
        limit: seconds after which a slice ends; its rows so far are kept.

    Raises:
        ConfigError: the rows in `out` come from another machine or other versions.
    """
    head = {
        "machine": {**machine(), **_gpu(device)},
        "versions": versions(),
        "command": shlex.join([*_COMMAND.split(), *sys.argv[1:]]),
    }
    rows = _kept(out, head, slices)
    failed: list[str] = []

    def keep(row: Row) -> None:
        row["details"] = {**row.get("details", {}), "slice": name}
        rows.append(row)
        write_atomically(out, json.dumps({**head, "rows": rows}, ensure_ascii=False) + "\n")

    for name, found in slices.items():
        started, result = time.perf_counter(), "passed"
        try:
            with _at_most(limit):
                for row in found(device, quick):
                    keep(row)
        except NotMeasured as reason:
            result = f"not measured: {reason}"
        except Exception as error:  # run the other slices after any error
            log.exception("%s failed", name)
            result = f"{type(error).__name__}: {error}"
            failed.append(name)
        seconds = time.perf_counter() - started
        log.info("%s: %s, %.0f s", name, "failed" if name in failed else result, seconds)
        details: dict[str, Any] = {"result": result}
        keep(Row(benchmark="gpu", case=name, engine="all", seconds=seconds, details=details))
        gc.collect()
        network.cache_clear()
        torch.cuda.empty_cache()  # other processes of the next slice may need the memory
    return failed


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """Raise `TimeoutError` in the block after `seconds` seconds."""

    def stop(_number: int, _frame: object) -> None:
        raise TimeoutError(f"ended after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _kept(out: Path, head: Mapping[str, Any], slices: Mapping[str, Slice]) -> list[Row]:
    """Return the rows of other slices."""
    if not out.exists():
        return []
    before = json.loads(out.read_text(encoding="utf-8"))
    theirs, ours = (
        {**each["versions"], **{key: each["machine"].get(key) for key in ("processor", "gpu")}}
        for each in (before, head)
    )
    if theirs != ours:
        raise ConfigError(
            f"--out {out}: its rows come from another machine or other versions; give another file"
        )
    return [row for row in before["rows"] if row["details"]["slice"] not in slices]


def results(out: Path) -> dict[str, str]:
    """Return the result of each slice in `out`: "passed", an error, or "not measured"."""
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.exists() else []
    ends = {row["case"]: row["details"]["result"] for row in rows if row.get("engine") == "all"}
    return {name: ends.get(name, "not measured") for name in SLICES}


def _gpu(device: str) -> dict[str, Any]:
    """Return the GPU's name, its memory and the version of CUDA."""
    if device == "cpu":
        return {"gpu": None}
    found = torch.cuda.get_device_properties(device)
    gib = round(found.total_memory / 2**30, 1)
    return {"gpu": found.name, "gpu_gib": gib, "cuda": torch.version.cuda}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the slices of the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog=_COMMAND)
    names = ", ".join(SLICES)
    parser.add_argument("slices", nargs="*", metavar="SLICE", help=f"{names}; all by default")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--quick", action="store_true", help="use tiny shapes; also works on a CPU")
    parser.add_argument("--list", action="store_true", help="show each slice's result in the file")
    chosen = parser.parse_args(arguments)
    if unknown := sorted(set(chosen.slices) - set(SLICES)):
        parser.error(f"SLICE = {unknown[0]!r}: unknown slice; known: {names}")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if chosen.list:
        for name, result in results(chosen.out).items():
            log.info("%s: %s", name, result)
        return 0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not chosen.quick:
        parser.error("torch finds no CUDA device; with --quick shapes are tiny and a CPU is enough")
    collect_garbage_rarely()  # as a run does
    keep_freed_memory()
    slices = {name: SLICES[name] for name in chosen.slices or SLICES}
    try:
        return 1 if measure(slices, device, chosen.quick, chosen.out) else 0
    except ConfigError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())

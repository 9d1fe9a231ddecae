"""Checks and times on a GPU: `python -m fedsim.experiments.benchmarks.gpu [SECTION]... --out FILE`.

The file is what `fedsim.experiments.benchmarks.page` shows, written anew after each row. What it
has of other sections stays, where the machine was the same. A section that fails is in it with its
error, and the next one begins; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedsim.experiments.benchmarks.gpu.checks import device_tests, parity, resumed
from fedsim.experiments.benchmarks.gpu.speed import ratios, workers
from fedsim.experiments.benchmarks.timing import Row
from fedsim.utils.files import write_atomically
from fedsim.utils.machine import collect_garbage_rarely, keep_freed_memory, machine, versions

log = logging.getLogger(__name__)

Section = Callable[[str, bool], Iterator[Row]]
"""Yields rows, from a device in torch's spelling and whether shapes are to be tiny; may raise."""

SECTIONS: Mapping[str, Section] = {
    "parity": parity,
    "tests": device_tests,
    "resume": resumed,
    "ratios": ratios,
    "workers": workers,
}
_COMMAND = "python -m fedsim.experiments.benchmarks.gpu"


def measure(
    sections: Mapping[str, Section], device: str, quick: bool, out: Path, only: str = ""
) -> list[str]:
    """Carry out sections, write what they find to `out`, and return the names of those that failed.

    Each leaves a last row with its seconds and, in `details["result"]`, "passed" or its error.
    Where they are to find only cases whose names have a text in them, those of others stay.
    """
    head = {
        "machine": {**machine(), **_gpu(device)},
        "versions": versions(),
        "command": shlex.join([*_COMMAND.split(), *sys.argv[1:]]),
    }
    rows = _kept(out, head, sections, only)
    failed: list[str] = []

    def keep(row: Row) -> None:
        row["details"] = {**row.get("details", {}), "section": name}
        rows.append(row)
        write_atomically(out, json.dumps({**head, "rows": rows}, ensure_ascii=False) + "\n")

    for name, section in sections.items():
        started, result = time.perf_counter(), "passed"
        try:
            for row in section(device, quick):
                keep(row)
        except Exception as error:  # whatever it is, the others go on
            log.exception("%s failed", name)
            result = f"{type(error).__name__}: {error}"
            failed.append(name)
        seconds = time.perf_counter() - started
        log.info("%s: %s, %.0f s", name, "failed" if name in failed else result, seconds)
        details: dict[str, Any] = {"result": result}
        keep(Row(benchmark="gpu", case=name, engine="all", seconds=seconds, details=details))
        gc.collect()
        torch.cuda.empty_cache()  # other processes of the next section may need the memory
    return failed


def _kept(
    out: Path, head: Mapping[str, Any], sections: Mapping[str, Section], only: str
) -> list[Row]:
    """Return the rows of other sections and cases that such a machine has written before."""
    if not out.exists():
        return []
    before = json.loads(out.read_text(encoding="utf-8"))
    same = before["versions"] == head["versions"] and all(
        before["machine"].get(part) == head["machine"][part] for part in ("processor", "gpu")
    )

    def again(row: Row) -> bool:
        case, section = row["case"], row["details"]["section"]
        return section in sections and (only in case or case == section)

    return [row for row in before["rows"] if same and not again(row)]


def _gpu(device: str) -> dict[str, Any]:
    """Return the GPU's name, its memory and the version of CUDA."""
    if device == "cpu":
        return {"gpu": None}
    found = torch.cuda.get_device_properties(device)
    gib = round(found.total_memory / 2**30, 1)
    return {"gpu": found.name, "gpu_gib": gib, "cuda": torch.version.cuda}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sections of the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog=_COMMAND)
    names = ", ".join(SECTIONS)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{names}; all by default")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--quick", action="store_true", help="tiny shapes; on a CPU too")
    parser.add_argument("--case", default="", help="with ratios: cases with this in their names")
    chosen = parser.parse_args(arguments)
    if unknown := sorted(set(chosen.sections) - set(SECTIONS)):
        parser.error(f"SECTION = {unknown[0]!r}: there is none of this name; known: {names}")
    if chosen.case and chosen.sections != ["ratios"]:
        parser.error("--case is for ratios alone: give SECTION ratios, and no other")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not chosen.quick:
        parser.error("torch sees no CUDA device here; with --quick all is tiny and a CPU will do")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    collect_garbage_rarely()  # as a run does
    keep_freed_memory()
    sections = {name: SECTIONS[name] for name in chosen.sections or SECTIONS}
    if chosen.case:
        sections["ratios"] = partial(ratios, only=chosen.case)
    return 1 if measure(sections, device, chosen.quick, chosen.out, chosen.case) else 0


if __name__ == "__main__":
    sys.exit(main())

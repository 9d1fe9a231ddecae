"""Faults: disks that end, folders that turn read-only, damaged checkpoints, a second process.

After each stop one clear message and an intact last checkpoint must be left, and once there is
room the run must end in the same bits as one that was left alone. The disk is a real one, small,
in memory, and is filled up right before a change of the disk in each stage of a life; where this
system lets nobody mount one, files that may not grow stand in for it (and nothing for read-only
folders). The counts say which.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.robustness.faults.disks import namespace
from tests.robustness.outcome import Outcome


def run(folder: Path, seconds: float, seed: int) -> Outcome:
    """Try all faults in every stage, or as many as the seconds allow."""
    prefix = namespace()
    out = folder / "outcome.json"
    order = [str(folder), str(seconds), str(seed), str(out), "real" if prefix else "limit"]
    module = [sys.executable, "-m", "tests.robustness.faults.fault_sweep"]
    subprocess.run([*prefix, *module, *order], check=True)
    found = json.loads(out.read_text(encoding="utf-8"))
    return Outcome("faults", found["counts"], tuple(found["losses"]))

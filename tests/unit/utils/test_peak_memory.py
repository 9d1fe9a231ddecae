"""The peak is of this process: not of the one that started it, and never less than it has."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from fedsim.utils.machine import peak_memory_bytes

_PRINT = "from fedsim.utils.machine import peak_memory_bytes; print(peak_memory_bytes())"


def test_a_large_block_shows_and_stays() -> None:
    before = peak_memory_bytes()
    block = np.ones(40_000_000)
    assert peak_memory_bytes() > 300_000_000 or block.sum() < 0
    del block
    assert peak_memory_bytes() >= max(before, 300_000_000)


def test_a_started_process_begins_anew() -> None:
    block = np.ones(40_000_000)
    done = subprocess.run([sys.executable, "-c", _PRINT], capture_output=True, check=True)
    assert block.sum() > 0
    assert int(done.stdout) < 200_000_000 < peak_memory_bytes()

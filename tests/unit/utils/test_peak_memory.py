"""A process's peak is its own; and what it frees is kept where it asks for that."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

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


_FREED = """
import resource, sys
import numpy as np
from fedsim.utils.machine import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
blocks = [np.ones(10_000_000) for _ in range(2)]
del blocks
before = faults()
for _ in range(10):
    np.ones(10_000_000)
print(faults() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_memory_that_was_freed_is_used_again_without_the_systems_help() -> None:
    faults = {}
    for how in ("given back", "kept"):
        done = subprocess.run([sys.executable, "-c", _FREED, how], capture_output=True, check=True)
        faults[how] = int(done.stdout)
    assert faults["kept"] < 1_000  # of 195,000 pages, or 390 huge ones
    assert faults["kept"] < faults["given back"]

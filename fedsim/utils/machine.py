"""This machine: its processor, package versions and memory."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import re
import resource
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

version = cache(metadata.version)  # the versions of imported packages do not change

_STATUS = Path("/proc/self/status")

BRIEF_WAITING: Mapping[str, str] = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "4000"}
"""Environment variables that let waiting torch threads spin for some microseconds, then sleep.

By default they spin for milliseconds, which halves the throughput beside another busy process.
Sleeping at once would cost an eighth on a quiet machine. GNU's OpenMP, part of torch's packages,
reads both variables; other implementations read only the first.
"""


def peak_memory_bytes() -> int:
    """Return the peak resident memory of this process, in bytes.

    Linux records it per address space. `getrusage` is only a fallback: its peak includes that of
    the process which started this one by `exec`.
    """
    with suppress(OSError, ValueError):
        return proc_bytes(_STATUS, "VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def collect_garbage_rarely() -> None:
    """Let Python's garbage collector run less often.

    A command imports half a million permanent objects, and repeated scans took a tenth of its
    start. Rounds leave no large reference cycles.
    """
    gc.set_threshold(10_000, 50)


_MMAP_THRESHOLD, _TRIM_THRESHOLD, _TOP_PAD = -3, -1, -2  # parameters of glibc's mallopt


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for later allocations; no effect with other C libraries.

    By default it returns large blocks to the system at once, which must clear the pages of the next
    blocks. Copies of a large model then take two to five times as long, and a pass of an engine a
    quarter longer.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 2**30)
        mallopt(_TRIM_THRESHOLD, -1)  # never
        mallopt(_TOP_PAD, 2**26)


_MEMINFO, _CONTAINER = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")


def memory_for_this_process() -> int | None:
    """Return the bytes that this process has or can get; None if unknown.

    This includes free and reclaimable memory and swap; in a container, at most its limit.
    """
    try:
        free = proc_bytes(_MEMINFO, "MemAvailable") + proc_bytes(_MEMINFO, "SwapFree")
        available = free + proc_bytes(_STATUS, "RssAnon")
    except (OSError, ValueError):
        return None
    with suppress(OSError, ValueError):  # no container, or a container with the limit "max"
        return min(available, int(_CONTAINER.read_text()))
    return available


def proc_bytes(path: Path, name: str) -> int:
    """Return the bytes of a line "name: 123 kB" of a file in /proc.

    Raises:
        ValueError: there is no such line.
    """
    found = re.search(rf"^{name}:\s+(\d+) kB$", path.read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{path} has no {name}")
    return int(found[1]) * 1024


def give_back_freed_memory() -> None:
    """Return memory kept by `keep_freed_memory` to the system, if the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


_CPUINFO = Path("/proc/cpuinfo")
_PACKAGES = ("fedsim-dp", "dp-accounting", "numpy", "scipy", "torch")


def machine() -> dict[str, Any]:
    """Return a description of this machine, and the date, for measured times."""
    import torch  # noqa: PLC0415 (processes without torch ask for their peak)

    return {
        "date": time.strftime("%Y-%m-%d"),
        "system": platform.platform(),
        "processor": _processor(),
        # Ratios of times depend on it: vector instructions speed up products, but not memory.
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "cpus": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }


def _processor() -> str:
    """Return the processor's name, or its architecture if the name is unknown."""
    text = _CPUINFO.read_text(errors="replace") if _CPUINFO.exists() else ""
    found = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect measured times."""
    return {"python": platform.python_version()} | {name: version(name) for name in _PACKAGES}

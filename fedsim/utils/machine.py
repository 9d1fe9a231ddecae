"""This machine: its name, versions, memory; and the row of a benchmark."""

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

version = cache(metadata.version)  # of what is imported, which stays as it is

_STATUS = Path("/proc/self/status")

BRIEF_WAITING: Mapping[str, str] = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "4000"}
"""The environment in which a thread of torch that waits for others looks for some microseconds.

Then it sleeps. Left to itself it looks for milliseconds, which beside another busy process halves
the throughput; asleep at once it would lose an eighth on a quiet machine, as waking takes time.
GNU's OpenMP, which torch's own packages hold, reads both; others only that threads are to sleep.
"""


def peak_memory_bytes() -> int:
    """Return the peak resident memory of this process, in bytes.

    Linux keeps it for each address space. `getrusage` is no substitute: what a process starts by
    `exec` begins with the peak of the one that started it.
    """
    with suppress(OSError, ValueError):
        return proc_bytes(_STATUS, "VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def collect_garbage_rarely() -> None:
    """Let Python look less often for objects that nothing but themselves refers to.

    A command imports half a million objects that stay, and a tenth of its start went into looking
    through them again and again. A round leaves none that are large.
    """
    gc.set_threshold(10_000, 50)


_MMAP_THRESHOLD, _TRIM_THRESHOLD, _TOP_PAD = -3, -1, -2  # parameters of glibc's mallopt


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for what is allocated next; not all of them can.

    It would give large blocks back to the system at once, and the pages of the next ones have to be
    cleared again: copies of a large model then take twice to five times as long, and a pass of an
    engine, which takes the same tensors over and over, a quarter longer.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 2**30)
        mallopt(_TRIM_THRESHOLD, -1)  # never
        mallopt(_TOP_PAD, 2**26)


_MEMINFO, _CONTAINER = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")


def memory_for_this_process() -> int | None:
    """Return the bytes that this process has or may get; None where the system does not tell.

    What is free or can be freed, swap included; in a container, no more than it is allowed.
    """
    try:
        free = proc_bytes(_MEMINFO, "MemAvailable") + proc_bytes(_MEMINFO, "SwapFree")
        most = free + proc_bytes(_STATUS, "RssAnon")
    except (OSError, ValueError):
        return None
    with suppress(OSError, ValueError):  # no container, or one without a limit, "max"
        return min(most, int(_CONTAINER.read_text()))
    return most


def proc_bytes(path: Path, name: str) -> int:
    """Return the bytes of a line "name: 123 kB" of Linux; errors where there is none."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", path.read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{path} has no {name}")
    return int(found[1]) * 1024


def give_back_freed_memory() -> None:
    """Give what was kept by `keep_freed_memory` back to the system; not all C libraries can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


_CPUINFO = Path("/proc/cpuinfo")
_PACKAGES = ("fedsim-dp", "dp-accounting", "numpy", "scipy", "torch")


def machine() -> dict[str, Any]:
    """Return what the times were measured on, and the day."""
    import torch  # noqa: PLC0415 (processes without torch ask for their peak)

    return {
        "date": time.strftime("%Y-%m-%d"),
        "system": platform.platform(),
        "processor": _processor(),
        # Ratios differ with it: products grow faster by it, and memory does not.
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "cpus": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }


def _processor() -> str:
    """Return the processor's name, or its architecture where the system does not tell."""
    text = _CPUINFO.read_text(errors="replace") if _CPUINFO.exists() else ""
    found = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that the times depend on."""
    return {"python": platform.python_version()} | {name: version(name) for name in _PACKAGES}

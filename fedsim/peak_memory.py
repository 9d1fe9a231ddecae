"""The most memory that this process has had: the number in reports and benchmarks."""

from __future__ import annotations

import re
import resource
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_memory_bytes() -> int:
    """Return the peak resident memory of this process, in bytes.

    Linux keeps it for each address space. `getrusage` is no substitute: what a process starts by
    `exec` begins with the peak of the one that started it.
    """
    if _STATUS.exists():
        found = re.search(r"^VmHWM:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

"""Large blocks stay with the process: glibc hands fresh zeroed pages for each otherwise."""

from __future__ import annotations

import ctypes
import platform
from functools import lru_cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@lru_cache(maxsize=1)
def keep_large_blocks() -> None:
    """Let malloc keep blocks up to 1 GiB, and 2 GiB in all, for reuse; once a process.

    A training step frees and takes the same large tensors over and over. Without this each is
    mapped anew, and the page faults cost a quarter of the step. Nothing happens without glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)

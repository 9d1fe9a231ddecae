"""A lock that the system lets go of when its holder ends, however it ends."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

_log = logging.getLogger(__name__)


def wait(lock: int) -> None:
    """Wait until the lock is free, and take it: what `locked` may do when it is taken."""
    fcntl.flock(lock, fcntl.LOCK_EX)


@contextmanager
def locked(path: Path, when_taken: Callable[[int], None]) -> Iterator[int]:
    """Hold the lock on a file, of which one process at a time can have it, and give the file.

    The file is made where it is missing, its folder too, and stays: removing it inside the block
    is allowed, whoever waits for it then makes it anew. A process that is killed frees the lock.
    So does a child that it forked only when that has ended too; a child that it started has no
    part in it.

    On a network file system the lock holds between machines only as far as that file system
    says so: NFS from version 4 does, Lustre where mounted with `flock`, and some keep it to one
    machine without a word. Where there are no locks at all, a warning is logged and the block
    runs without.

    Args:
        path: of the file.
        when_taken: is called with the open file if another has the lock; waits for it, or raises.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # whoever had it before has just removed the folder
            continue
        try:
            _take(lock, path, when_taken)
            if _is_still(path, lock):
                yield lock
                return
        finally:
            os.close(lock)


def _take(lock: int, path: Path, when_taken: Callable[[int], None]) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        when_taken(lock)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _log.warning("%s: a file system without locks; start one process at a time", path.parent)


def _is_still(path: Path, lock: int) -> bool:
    """Whether the file that was waited for is the one that others will find."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(lock))
    return False

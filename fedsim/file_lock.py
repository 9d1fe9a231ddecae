"""A lock that the system lets go of when its holder ends, however it ends."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedsim.errors import ConfigError

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

_log = logging.getLogger(__name__)


def wait(lock: int) -> None:
    """Wait until the lock is free, and take it: what `locked` may do when it is taken."""
    fcntl.flock(lock, fcntl.LOCK_EX)


def warn_without(path: Path) -> None:
    """Log a warning and go on: what `locked` does by default where there are no locks."""
    _log.warning("%s: a file system without locks; start one process at a time", path.parent)


def refuse_without(path: Path) -> None:
    """Raise `ConfigError`: for a file in which two processes could spend the same twice."""
    raise ConfigError(
        f"{path.parent}: a file system without locks, on which two processes could spend the same "
        "budget; keep the file on another one"
    )


@contextmanager
def locked(
    path: Path,
    when_taken: Callable[[int], None],
    *,
    without: Callable[[Path], None] = warn_without,
) -> Iterator[int]:
    """Hold the lock on a file, of which one process at a time can have it, and give the file.

    The file is made where it is missing, its folder too, and stays: removing it inside the block
    is allowed, whoever waits for it then makes it anew. A process that is killed frees the lock.
    So does a child that it forked only when that has ended too; a child that it started has no
    part in it.

    On a network file system the lock holds between machines only as far as that file system
    says so: NFS from version 4 does, Lustre where mounted with `flock`, and some keep it to one
    machine without a word. Where there are no locks at all, `without` decides.

    Args:
        path: of the file.
        when_taken: is called with the open file if another has the lock; waits for it, or raises.
        without: is called with the path on a file system without locks; raises, or returns, and
            then the block runs without a lock.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # whoever had it before has just removed the folder
            continue
        try:
            _take(lock, path, when_taken, without)
            if _is_still(path, lock):
                yield lock
                return
        finally:
            os.close(lock)


def _take(
    lock: int, path: Path, when_taken: Callable[[int], None], without: Callable[[Path], None]
) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        when_taken(lock)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        without(path)


def _is_still(path: Path, lock: int) -> bool:
    """Whether the file that was waited for is the one that others will find."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(lock))
    return False

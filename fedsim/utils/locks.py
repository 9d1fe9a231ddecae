"""Locks on files and folders, which are released when the process ends, even by a kill."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from fedsim.errors import ConfigError, about

LOCK = ".fedsim.lock"

_log = logging.getLogger(__name__)


@contextmanager
def locked(path: Path, *, waiting: str | None = "") -> Iterator[None]:
    """Hold an exclusive lock on a file while the block runs.

    The file and its folder are created if needed; the file is deleted at the end.

    Args:
        path: path of the lock file.
        waiting: message to log before waiting for another process; None: do not wait.

    Raises:
        filelock.Timeout: another process holds the lock, and `waiting` is None.
        OSError: the file cannot be written, or the file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, mode=0o666, poll_interval=0.01, fallback_to_soft=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if waiting is None:
            raise
        if waiting:
            _log.warning(waiting)
        lock.acquire()
    try:
        yield
    finally:
        with suppress(OSError):  # delete before release: filelock detects a deleted lock file
            path.unlink(missing_ok=True)
        lock.release()


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Keep other fedsim processes from writing to a folder while the block runs.

    The folder is created if needed, and deleted at the end if it is empty. A killed process leaves
    the file `.fedsim.lock`, but not the lock.

    Raises:
        ConfigError: another process holds the lock, or the folder cannot be written.
    """
    with ExitStack() as held:
        with about(f"--out {folder}: cannot be written: ", (OSError,)):
            try:
                held.enter_context(locked(folder / LOCK, waiting=None))
            except Timeout:
                raise ConfigError(
                    f"--out {folder}: another process is writing to it; wait until that ends, or "
                    "name another folder"
                ) from None
        try:
            yield
        finally:
            held.close()
            with suppress(OSError):  # usually it is not empty
                folder.rmdir()

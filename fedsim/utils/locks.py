"""Locks on files and folders, released when the process ends, however it ends."""

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
    """Hold the lock on a file: one process at a time can.

    The file and its folder are made if need be, and the file is removed at the end.

    Args:
        path: of the file.
        waiting: logged before the block waits for another holder; None: it does not wait.

    Raises:
        filelock.Timeout: another holds the lock, and `waiting` is None.
        OSError: no file can be written here, or the file system has no locks.
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
        with suppress(OSError):  # while the lock is held: filelock takes no removed file
            path.unlink(missing_ok=True)
        lock.release()


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Keep other processes from writing into a folder while the block runs.

    The folder is made if need be, and is removed afterwards if it is empty. A process that is
    killed leaves the file `.fedsim.lock` behind but not the lock.

    Raises:
        ConfigError: another process has it, or the folder cannot be written.
    """
    with ExitStack() as held:
        with about(f"--out {folder}: cannot be written: ", (OSError,)):
            try:
                held.enter_context(locked(folder / LOCK, waiting=None))
            except Timeout:
                raise ConfigError(
                    f"--out {folder}: is being written by another process; wait for its end, or "
                    "name another folder"
                ) from None
        try:
            yield
        finally:
            held.close()
            with suppress(OSError):  # not empty, as a rule
                folder.rmdir()

"""Advisory locks on files and folders, released when the process exits."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from fedsim.errors import ConfigError, about

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
        except PermissionError:  # somebody else's: to lock it, reading is enough
            lock = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            if path.parent.exists():  # a place where no file can be
                raise
            continue  # whoever had it before has just removed the folder
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


LOCK = ".fedsim.lock"


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Keep other processes from writing into a folder while the block runs.

    The folder is made if need be, and is gone afterwards if nothing came into it. A process that
    is killed leaves the file `.fedsim.lock` behind but not the lock, so the folder can be taken up
    at once. What network file systems make of it: see `fedsim.utils.locks.locked`.

    Raises:
        ConfigError: another process has it, or the folder cannot be written.
    """
    made = [part for part in (folder, *folder.parents) if not part.exists()]

    def refuse(lock: int) -> None:
        holder = os.pread(lock, 1000, 0).decode(errors="replace") or "unknown"
        raise ConfigError(
            f"--out {folder}: is being written by another process, pid {holder}; wait for its "
            "end, or name another folder"
        )

    with ExitStack() as held:
        with about(f"--out {folder}: cannot be written: ", (OSError,)):
            lock = held.enter_context(locked(folder / LOCK, refuse))
            with suppress(OSError):  # another's file can be locked, not written
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"{os.getpid()} on {socket.gethostname()}".encode(), 0)
        try:
            yield
        finally:
            with suppress(OSError):  # whatever keeps it from going, what ended the block matters
                (folder / LOCK).unlink(missing_ok=True)
            with suppress(OSError):  # not empty, as a rule
                for part in made:
                    part.rmdir()


def check_no_writer(folder: Path) -> None:
    """Raise `ConfigError` if another process is writing into the folder; change nothing in it."""
    if (folder / LOCK).exists():
        with sole_writer(folder):
            pass

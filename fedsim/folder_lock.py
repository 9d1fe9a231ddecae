"""One process at a time writes into a run's or a comparison's folder; a second one is refused."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from fedsim.errors import ConfigError
from fedsim.file_lock import locked

LOCK = ".fedsim.lock"


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Keep other processes from writing into a folder while the block runs.

    The folder is made if need be, and is gone afterwards if nothing came into it. A process that
    is killed leaves the file `.fedsim.lock` behind but not the lock, so the folder can be taken up
    at once. What network file systems make of it: see `fedsim.file_lock.locked`.

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
        try:
            lock = held.enter_context(locked(folder / LOCK, refuse))
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()} on {socket.gethostname()}".encode(), 0)
        except OSError as error:
            raise ConfigError(f"--out {folder}: cannot be written: {error}") from None
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

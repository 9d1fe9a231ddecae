"""The hidden folder of a build: locked, kept for a resume, renamed to the store at the end."""

from __future__ import annotations

import fcntl
import json
import logging
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsim.errors import ConfigError
from fedsim.utils.files import naming, sync_all, write_atomically
from fedsim.utils.locks import locked

_LOCK, _PLAN = "lock", "plan.json"

_log = logging.getLogger(__name__)


class BuildFolder:
    """The two folders of a build.

    Attributes:
        parts: finished segments, which a resumed build reuses.
        result: the store, which becomes the destination.
    """

    def __init__(self, folder: Path) -> None:
        self.parts = folder / "parts"
        self.result = folder / "store"


@contextmanager
def build_folder(destination: Path, key: str | None) -> Iterator[BuildFolder]:
    """Yield a folder whose `result` becomes `destination` when the block ends without an error.

    One process at a time holds it; others wait. If the block is interrupted, or the process is
    killed, the next build of the same key finds `parts` as they were; a build of another key starts
    from nothing, and a `ConfigError` leaves nothing behind. The files are synced before the
    rename: not even a power cut leaves half a store.

    Args:
        destination: a folder that does not exist yet.
        key: of everything that the content depends on; None if unknown.

    Raises:
        FileExistsError: `destination` exists, perhaps since another process made it meanwhile.
    """
    if destination.exists():
        raise FileExistsError(f"{destination} exists")
    folder = destination.with_name(f".{destination.name}.build")

    def wait(lock: int) -> None:
        _log.warning("another process is building %s: waiting for it", destination)
        fcntl.flock(lock, fcntl.LOCK_EX)

    with naming(destination, keep=True), locked(folder / _LOCK, wait):
        useful = False
        try:
            if destination.exists():
                raise FileExistsError(f"{destination} exists")
            place = _tidied(folder, key or uuid.uuid4().hex)
            try:
                yield place
            except ConfigError:
                raise  # the input is wrong: there is nothing to resume
            except BaseException:
                useful = key is not None and any(place.parts.glob("*.json"))
                raise
            sync_all(place.result)
            _rename(place.result, destination)
        finally:
            if not useful:
                shutil.rmtree(folder, ignore_errors=True)


def _rename(folder: Path, destination: Path) -> None:
    try:
        folder.rename(destination)
    except OSError as error:  # "directory not empty" is not yet a FileExistsError
        if destination.exists():
            raise FileExistsError(f"{destination} exists") from error
        raise


def _tidied(folder: Path, key: str) -> BuildFolder:
    """Empty the folder, except for the parts of the same key."""
    place = BuildFolder(folder)
    plan = folder / _PLAN
    shutil.rmtree(place.result, ignore_errors=True)
    if not plan.exists() or plan.read_bytes() != json.dumps({"key": key}).encode():
        shutil.rmtree(place.parts, ignore_errors=True)
        write_atomically(plan, json.dumps({"key": key}))
    place.parts.mkdir(exist_ok=True)
    place.result.mkdir()
    return place

"""The hidden folder of a build: locked, and renamed to the store at the end."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsim.utils.files import naming, sync_all
from fedsim.utils.locks import locked


@contextmanager
def build_folder(destination: Path) -> Iterator[tuple[Path, Path]]:
    """Yield two empty folders: for temporary files, and for the store.

    The second becomes `destination` when the block ends without an error: synced, then renamed, so
    that a store is whole or missing. One process at a time has the folders; others wait. What a
    killed build left is removed by the next build of the same destination.

    Raises:
        FileExistsError: `destination` exists, perhaps because another process has just made it.
    """
    folder = destination.with_name(f".{destination.name}.build")
    lock = destination.with_name(f".{destination.name}.lock")
    waiting = f"another process is building {destination}: waiting for it"
    if destination.exists():
        raise FileExistsError(f"{destination} exists")
    with naming(destination, keep=True), locked(lock, waiting=waiting):
        if destination.exists():
            raise FileExistsError(f"{destination} exists")
        shutil.rmtree(folder, ignore_errors=True)
        scratch, store = folder / "scratch", folder / "store"
        try:
            scratch.mkdir(parents=True)
            store.mkdir()
            yield scratch, store
            sync_all(store)
            store.rename(destination)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

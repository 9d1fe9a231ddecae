"""Where things that can be made again are kept, and how files are written whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedsim.disk_errors import naming


def cache_dir() -> Path:
    """Return `$FEDSIM_CACHE`, or `$XDG_CACHE_HOME/fedsim`, or `~/.cache/fedsim`."""
    if explicit := os.environ.get("FEDSIM_CACHE"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fedsim"


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace `path` by `content` so that a reader sees the old file or the new one, never half.

    Writes beside the target, syncs, renames, and syncs the folder: after it returns, a power
    cut cannot bring the old content back. What fails, for want of room say, leaves nothing behind.

    Raises:
        OSError: it could not be written; it names `path`.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = _beside(path)
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync(path.parent)


@contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """Give an empty hidden folder beside `path` to be filled, then renamed by the block.

    What is left of it when the block ends is removed.

    Raises:
        OSError: it could not be made.
    """
    temporary = _beside(path)
    shutil.rmtree(temporary, ignore_errors=True)
    with naming(temporary):
        temporary.mkdir(parents=True)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync_all(folder: Path) -> None:
    """Wait until the folder and everything in it, at any depth, is on the disk."""
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def rename_synced(path: Path, target: Path) -> None:
    """Rename, and wait until the new name is on the disk."""
    path.rename(target)
    _sync(target.parent)


def drop_temporaries(folder: Path) -> None:
    """Remove what killed writers left in a folder that nobody else is writing into."""
    for path in folder.glob(".*.tmp"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)

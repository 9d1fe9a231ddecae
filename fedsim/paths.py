"""Where things that can be made again are kept, and how files are written whole."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return `$FEDSIM_CACHE`, or `$XDG_CACHE_HOME/fedsim`, or `~/.cache/fedsim`."""
    if explicit := os.environ.get("FEDSIM_CACHE"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fedsim"


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace `path` by `content` so that a reader sees the old file or the new one, never half.

    Writes beside the target, syncs, renames, and syncs the folder: after it returns, a power
    cut cannot bring the old content back.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

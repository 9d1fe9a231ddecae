"""Check that a store's files are as they were written, by their sizes or byte by byte.

Opening a store compares sizes. `fedsim data inspect STORE --verify` compares every byte, so it
notices a disk that loses bits.
"""

from __future__ import annotations

from pathlib import Path

from fedsim.data.store.manifest import FileFacts, Manifest, damaged
from fedsim.utils.files import file_digest


def facts(path: Path) -> FileFacts:
    """Return the size and checksum of a file."""
    return FileFacts(bytes=path.stat().st_size, sha256=file_digest(path))


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Raise `ConfigError` where a file is missing, or not as large as the manifest says."""
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != expected["bytes"]:
            raise damaged(folder, f"{name} is missing or was cut short")


def verify(folder: Path, manifest: Manifest) -> None:
    """Raise `ConfigError` where a file is not what the manifest says, byte by byte."""
    for name, expected in manifest["files"].items():
        if facts(folder / name) != expected:
            raise damaged(folder, f"{name} has changed since it was written")

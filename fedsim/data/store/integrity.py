"""Check that a store's files are unchanged, by size or byte by byte.

Opening a store compares sizes. `fedsim data inspect STORE --verify` compares every byte, and so
detects disk errors.
"""

from __future__ import annotations

from pathlib import Path

from fedsim.data.store.manifest import FileFacts, Manifest, damaged
from fedsim.utils.files import file_digest


def facts(path: Path) -> FileFacts:
    """Return the size and checksum of a file."""
    return FileFacts(bytes=path.stat().st_size, sha256=file_digest(path))


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Raise `ConfigError` if a file is missing or has another size than in the manifest."""
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != expected["bytes"]:
            raise damaged(folder, f"{name} is missing or was cut short")


def verify(folder: Path, manifest: Manifest) -> None:
    """Raise `ConfigError` if the checksum of a file differs from the manifest."""
    for name, expected in manifest["files"].items():
        if facts(folder / name) != expected:
            raise damaged(folder, f"{name} has changed since it was written")

"""Check that a store's files are as they were written, without reading gigabytes each time.

Checksums are compared when a store is first opened on a machine, and again whenever a file's size
or times have changed since: a note in the cache folder says which files were found whole. So a run
never begins on a flipped byte. A disk that loses bits and leaves the times alone is not noticed:
`fedsim data inspect STORE --verify` reads everything, whatever is noted.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fedsim.data.store.manifest import FileFacts, Manifest, damaged, read_manifest
from fedsim.utils import files as paths
from fedsim.utils.json_text import digest
from fedsim.utils.terminal import status_when_slow


def facts(path: Path) -> FileFacts:
    """Return the size and checksum of a file."""
    return FileFacts(bytes=path.stat().st_size, sha256=paths.file_digest(path))


def check(folder: Path, manifest: Manifest) -> None:
    """Compare all checksums, unless the files are noted as whole.

    Raises:
        ConfigError: a file is missing, or is not what the manifest says.
    """
    try:
        is_whole = _note(folder, manifest).exists()
    except OSError as error:
        raise damaged(folder, f"{Path(error.filename).name}: {error.strerror}") from error
    if not is_whole:
        verify(folder, manifest)


def verify(folder: Path, manifest: Manifest) -> None:
    """Compare all checksums, and note that the files are whole.

    Raises:
        ConfigError: a file is not what the manifest says.
    """
    with status_when_slow("checking the store"):
        for name, expected in manifest["files"].items():
            if paths.file_digest(folder / name) != expected["sha256"]:
                raise damaged(folder, f"{name} has changed since it was written")
    note_whole(folder, manifest)


def note_whole(folder: Path, manifest: Manifest | None = None) -> None:
    """Note a store whose checksums have just been computed from these very files."""
    folder = folder.resolve()
    with suppress(OSError):  # no place for notes: then it is read each time
        paths.write_atomically(_note(folder, manifest or read_manifest(folder)), b"")


def _note(folder: Path, manifest: Manifest) -> Path:
    """Return the note's path: of other content, sizes or times it is another."""
    stamps = [paths.stamp(folder / name) for name in sorted(manifest["files"])]
    return paths.cache_dir() / "whole" / digest([manifest["sha256"], *stamps])

"""Whether a store's files are as they were written, without reading gigabytes each time.

Sizes are compared whenever a store is opened. Checksums are compared when a store is first opened
on a machine, and again whenever a file's size, times or inode have changed since: what was found
whole is noted under the cache directory. That costs a second for 1.5 GB, once, and a run never
begins on a flipped byte. What this cannot see is a disk that loses bits and leaves the times
alone; `fedsim data inspect STORE --verify` reads everything whatever is noted.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedsim.data.store.manifest import FileFacts, Manifest, damaged, read_manifest
from fedsim.data.store.structure import check_structure
from fedsim.utils import files as paths
from fedsim.utils.json_text import read_json

SMALL = 8 << 20
"""Stores of fewer bytes are read each time, which takes milliseconds, and leave no note."""

Note = dict[str, list[int | str]]

_BUFFER = 1 << 20


def facts(path: Path) -> FileFacts:
    """Return the size and checksum of a file."""
    return FileFacts(bytes=path.stat().st_size, sha256=_digest(path, lambda count: None))


def check(folder: Path, manifest: Manifest) -> None:
    """Compare sizes and, unless the files are noted as whole, checksums.

    Raises:
        ConfigError: a file is missing, or is not what the manifest says; the message names it.
    """
    _compare_sizes(folder, manifest)
    if _total(manifest) < SMALL or _noted(folder) != _note(folder, manifest):
        verify(folder, manifest)


def verify(folder: Path, manifest: Manifest) -> None:
    """Compare sizes, checksums and what the offsets say, and note that the files are whole.

    Raises:
        ConfigError: as `check`.
    """
    _compare_sizes(folder, manifest)
    before = _note(folder, manifest)
    with _progress(_total(manifest)) as advance:
        for name, expected in manifest["files"].items():
            try:
                found = _digest(folder / name, advance)
            except OSError as error:
                raise damaged(folder, f"{name}: {error.strerror}") from error
            if found != expected["sha256"]:
                wanted = expected["sha256"]
                raise damaged(
                    folder, f"{name} has changed: SHA-256 {found[:12]}…, not {wanted[:12]}…"
                )
    check_structure(folder, manifest)
    _write_note(folder, manifest, before)


def note_whole(folder: Path) -> None:
    """Note a store whose checksums have just been computed from these very files."""
    resolved = folder.resolve()
    manifest = read_manifest(resolved)
    _write_note(resolved, manifest, _note(resolved, manifest))


def _write_note(folder: Path, manifest: Manifest, note: Note) -> None:
    if _total(manifest) >= SMALL:
        with suppress(OSError):  # no place for notes: then it is read each time
            paths.write_atomically(_place(folder), json.dumps(note))


def _compare_sizes(folder: Path, manifest: Manifest) -> None:
    for name, expected in manifest["files"].items():
        try:
            size = (folder / name).stat().st_size
        except OSError as error:
            raise damaged(folder, f"{name}: {error.strerror}") from error
        if size != expected["bytes"]:
            raise damaged(folder, f"{name} has {size} bytes, not {expected['bytes']}")


def _digest(path: Path, advance: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BUFFER):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()


def _total(manifest: Manifest) -> int:
    return sum(file["bytes"] for file in manifest["files"].values())


def _note(folder: Path, manifest: Manifest) -> Note:
    """Return what a file that is written to, or put in the place of another, cannot keep."""
    note: Note = {"manifest": [manifest["sha256"]]}
    for name in manifest["files"]:
        status = (folder / name).stat()
        note[name] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    return note


def _noted(folder: Path) -> object:
    try:
        return read_json(_place(folder))
    except (OSError, ValueError):
        return None


def _place(folder: Path) -> Path:
    name = hashlib.sha256(str(folder).encode()).hexdigest()
    return paths.cache_dir() / "whole" / f"{name}.json"


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show how much of a large store has been read, if standard error is a terminal."""
    if total < 1 << 30 or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console  # noqa: PLC0415  (opening a store need not wait for it)
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("checking the store", total=total)
        yield lambda count: bar.advance(task, count)

"""Check a store: files as they were written, without reading gigabytes each time, and structure.

Sizes are compared whenever a store is opened. Checksums are compared when a store is first opened
on a machine, and again whenever a file's size, times or inode have changed since: what was found
whole is noted under the cache directory. That costs a second for 1.5 GB, once, and a run never
begins on a flipped byte. What this cannot see is a disk that loses bits and leaves the times
alone; `fedsim data inspect STORE --verify` reads everything, whatever is noted.

With the checksums the structure is checked: an offset that leads nowhere would show as another
user's text, or not at all.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedsim.data.store.manifest import (
    EXAMPLE_KEYS,
    EXAMPLE_OFFSETS,
    EXAMPLE_OWNER_OFFSETS,
    EXAMPLE_OWNERS,
    OWNER_EXAMPLE_OFFSETS,
    OWNER_EXAMPLES,
    OWNER_KEYS,
    OWNERS,
    TOKENS,
    USER_KEYS,
    USER_OFFSETS,
    USERS,
    FileFacts,
    Manifest,
    damaged,
    disk_dtype,
    read_manifest,
)
from fedsim.data.store.rows import Scalar, open_row
from fedsim.utils import files as paths
from fedsim.utils.json_text import parse_json, read_json
from fedsim.utils.terminal import every_half_minute, is_terminal, progress_console

_AT_ONCE = 1 << 20


def check_structure(folder: Path, manifest: Manifest) -> None:
    """Check that offsets lead through all examples and tokens, and that every user has a name.

    Raises:
        ConfigError: they do not; the message names the file.
    """
    users, examples, tokens = manifest["users"], manifest["examples"], manifest["tokens"]
    size = (folder / TOKENS).stat().st_size
    if size != tokens * disk_dtype(manifest["dtype"]).itemsize:
        raise damaged(folder, f"{TOKENS} has {size} bytes for {tokens} tokens")
    _check_offsets(folder, EXAMPLE_OFFSETS, examples, tokens, manifest["sequence_length"])
    _check_offsets(folder, USER_OFFSETS, users, examples, examples)
    for name, count in ((USER_KEYS, users), (EXAMPLE_KEYS, examples)):
        if (held := len(_sound_row(folder, name, np.uint64))) != count:
            raise damaged(folder, f"{name} holds {held} keys, not {count}")
    _check_names(folder, USERS, users)
    owners = manifest.get("owners")
    if owners is not None and owners["pairs"]:
        _check_graph(folder, manifest, owners["owners"], owners["pairs"])


def _check_graph(folder: Path, manifest: Manifest, num_owners: int, pairs: int) -> None:
    """Check that both directions lead through all pairs, and that an example's user comes first."""
    users, examples = manifest["users"], manifest["examples"]
    total = examples + pairs
    _check_offsets(folder, EXAMPLE_OWNER_OFFSETS, examples, total, num_owners)
    owners = _sound_row(folder, EXAMPLE_OWNERS, np.int64)
    by_owner = _sound_row(folder, OWNER_EXAMPLES, np.int64)
    for name, row, most in (
        (EXAMPLE_OWNERS, owners, num_owners),
        (OWNER_EXAMPLES, by_owner, examples),
    ):
        if len(row) != total or row.min() < 0 or row.max() >= most:
            raise damaged(folder, f"{name} does not hold {total} numbers below {most}")
    first = owners[_sound_row(folder, EXAMPLE_OWNER_OFFSETS, np.int64)[:-1]]
    if (
        first != np.repeat(np.arange(users), np.diff(_sound_row(folder, USER_OFFSETS, np.int64)))
    ).any():
        raise damaged(folder, f"{EXAMPLE_OWNERS}: an example's user is not its first owner")
    ends = np.cumsum(np.bincount(owners, minlength=num_owners))
    held = _sound_row(folder, OWNER_EXAMPLE_OFFSETS, np.int64)
    if len(held) != num_owners + 1 or held[0] != 0 or (held[1:] != ends).any():
        raise damaged(folder, f"{OWNER_EXAMPLE_OFFSETS} has other numbers than {EXAMPLE_OWNERS}")
    if len(_sound_row(folder, OWNER_KEYS, np.uint64)) != num_owners:
        raise damaged(folder, f"{OWNER_KEYS} does not hold {num_owners} keys")
    _check_names(folder, OWNERS, num_owners - users)


def _check_offsets(folder: Path, name: str, count: int, end: int, longest: int) -> None:
    """Check that `count` pieces of 1 to `longest` follow each other from 0 to `end`."""
    offsets = _sound_row(folder, name, np.int64)
    if len(offsets) != count + 1 or offsets[0] != 0 or offsets[-1] != end:
        raise damaged(folder, f"{name} does not lead from 0 to {end} in {count} steps")
    for start in range(0, count, _AT_ONCE):
        part = offsets[start : start + _AT_ONCE + 1]
        if part.min() < 0 or part.max() > end:  # then no difference can overflow
            raise damaged(folder, f"{name} leads outside")
        steps = np.diff(part)
        if steps.min() < 1 or steps.max() > longest:
            raise damaged(folder, f"{name} has steps of {steps.min()} to {steps.max()}")


def _sound_row(folder: Path, name: str, dtype: type[Scalar]) -> npt.NDArray[Scalar]:
    try:
        return open_row(folder / name, dtype)
    except ValueError as error:
        raise damaged(folder, str(error)) from error


def _check_names(folder: Path, name: str, count: int) -> None:
    if _num_names(folder / name) != count:
        raise damaged(folder, f"{name} does not hold {count} names, a JSON string a line")


def _num_names(path: Path) -> int:
    """Return the number of lines, or -1 where one of them is no JSON string."""
    with path.open("rb") as lines:
        number = 0
        for line in lines:
            try:
                name = parse_json(line)
            except ValueError:
                return -1
            if not isinstance(name, str):
                return -1
            number += 1
    return number


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
                digest = _digest(folder / name, advance)
            except OSError as error:
                raise damaged(folder, f"{name}: {error.strerror}") from error
            if digest != (written := expected["sha256"]):
                raise damaged(
                    folder, f"{name} has changed: SHA-256 {digest[:12]}…, not {written[:12]}…"
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
    """Return the files' sizes, times and inodes, which change with a write or a replacement."""
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
    """Show how much has been read: a bar for a large store, else a line of log a half minute."""
    if total < 1 << 30 or not is_terminal(sys.stderr):
        tell, done = every_half_minute("checking the store"), 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            tell(f"{100 * done // total} % of {total:,} bytes")

        yield advance
        return
    from rich.progress import Progress  # noqa: PLC0415  (opening a store need not wait for it)

    with Progress(console=progress_console(), transient=True) as bar:
        task = bar.add_task("checking the store", total=total)
        yield lambda count: bar.advance(task, count)

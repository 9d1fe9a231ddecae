"""Whether a store makes sense: a checksum says only that nobody changed what somebody wrote.

Looked at whenever the checksums are: what is in a store is trusted afterwards, and an offset that
leads nowhere would show as another user's text, or not at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.data.store.manifest import (
    EXAMPLE_KEYS,
    EXAMPLE_OFFSETS,
    TOKENS,
    USER_KEYS,
    USER_OFFSETS,
    USERS,
    Manifest,
    damaged,
    disk_dtype,
)
from fedsim.utils.json_text import parse_json

_AT_ONCE = 1 << 20


def open_offsets(path: Path) -> npt.NDArray[np.int64]:
    """Return the mapped int64 array of a file that `numpy.save` wrote; see `_open_row`."""
    return _open_row(path, np.int64)


def open_keys(path: Path) -> npt.NDArray[np.uint64]:
    """Return the mapped uint64 array of a file that `numpy.save` wrote; see `_open_row`."""
    return _open_row(path, np.uint64)


def _open_row(path: Path, dtype: type[Any]) -> npt.NDArray[Any]:
    """Return a mapped array.

    Raises:
        ValueError: it holds something other than a row of that type.
    """
    try:
        row = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except Exception as error:  # numpy has many ways to say that it is no array
        raise ValueError(f"{path.name}: {error}") from error
    if row.dtype != dtype or row.ndim != 1:
        raise ValueError(f"{path.name} holds {row.dtype} of shape {row.shape}")
    return row


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
        if name in manifest["files"]:
            _check_keys(folder, name, count)
    if _num_names(folder) != users:
        raise damaged(folder, f"{USERS} does not hold {users} names, a JSON string a line")


def _check_offsets(folder: Path, name: str, count: int, end: int, longest: int) -> None:
    """Check that `count` pieces of 1 to `longest` follow each other from 0 to `end`."""
    try:
        offsets = open_offsets(folder / name)
    except ValueError as error:
        raise damaged(folder, str(error)) from error
    if len(offsets) != count + 1 or offsets[0] != 0 or offsets[-1] != end:
        raise damaged(folder, f"{name} does not lead from 0 to {end} in {count} steps")
    for start in range(0, count, _AT_ONCE):
        part = offsets[start : start + _AT_ONCE + 1]
        if part.min() < 0 or part.max() > end:  # then no difference can overflow
            raise damaged(folder, f"{name} leads outside")
        steps = np.diff(part)
        if steps.min() < 1 or steps.max() > longest:
            raise damaged(folder, f"{name} has steps of {steps.min()} to {steps.max()}")


def _check_keys(folder: Path, name: str, count: int) -> None:
    try:
        keys = open_keys(folder / name)
    except ValueError as error:
        raise damaged(folder, str(error)) from error
    if len(keys) != count:
        raise damaged(folder, f"{name} holds {len(keys)} keys, not {count}")


def _num_names(folder: Path) -> int:
    """Return the number of lines, or -1 where one of them is no JSON string."""
    with (folder / USERS).open("rb") as lines:
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

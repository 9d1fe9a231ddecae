"""Rows of numbers: files that hold one, and indices of runs in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Scalar = TypeVar("Scalar", bound=np.generic)


def open_row(path: Path, dtype: type[Scalar]) -> npt.NDArray[Scalar]:
    """Return the mapped array, one row, of a file that `numpy.save` wrote.

    Raises:
        ValueError: it holds something other than a row of that type.
    """
    try:
        row = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except Exception as error:  # numpy raises errors of many kinds for what is no array
        raise ValueError(f"{path.name}: {error}") from error
    if row.dtype != dtype or row.ndim != 1:
        raise ValueError(f"{path.name} holds {row.dtype} of shape {row.shape}")
    return row


def ranks(counts: Indices) -> Indices:
    """Return 0 … count - 1 for each of the counts, end to end: int64, (sum of counts,)."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    ranked: Indices = np.arange(total) - np.repeat(ends - counts, counts)
    return ranked


def runs(starts: Indices, lengths: Indices) -> Indices:
    """Return start … start + length - 1 for each pair, end to end: int64."""
    return np.repeat(starts, lengths) + ranks(lengths)


def firsts(sizes: Indices, counts: Indices, *keys: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return a mask of the first items of each row, rows end to end.

    Args:
        sizes: (rows,) the number of items of each row.
        counts: (rows,) how many of each to choose.
        keys: (items,) what the order in a row goes by: equals in the first by the next, and
            equals in all by place.
    """
    row = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((*reversed(keys), row))
    chosen = np.zeros(len(row), np.bool_)
    chosen[order[ranks(sizes) < np.repeat(counts, sizes)]] = True
    return chosen


def offsets_of(counts: npt.NDArray[Any]) -> Indices:
    """Return where each of so many begins and, last, where all end: int64."""
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def bounds_of(offsets: Indices, at_once: int) -> list[int]:
    """Return where chunks of users begin and, last, end; a user too big for one is one alone.

    A chunk has at most `at_once` items, of which a user has offsets[user] : offsets[user + 1].
    """
    bounds = [0]
    while bounds[-1] < len(offsets) - 1:
        first = bounds[-1]
        until = int(np.searchsorted(offsets, offsets[first] + at_once, side="right")) - 1
        bounds.append(max(first + 1, until))
    return bounds

"""Arrays of one dimension: open them from files, and compute indices of runs in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Scalar = TypeVar("Scalar", bound=np.generic)


def open_row(path: Path, dtype: type[Scalar]) -> npt.NDArray[Scalar]:
    """Memory-map a one-dimensional array that `numpy.save` wrote.

    Raises:
        ValueError: the file does not hold a one-dimensional array of this type.
    """
    try:
        row = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except Exception as error:  # numpy raises many types of errors for an invalid file
        raise ValueError(f"{path.name}: {error}") from error
    if row.dtype != dtype or row.ndim != 1:
        raise ValueError(f"{path.name} holds {row.dtype} of shape {row.shape}")
    return row


def ranks(counts: Indices) -> Indices:
    """Return 0 … count - 1 for each count, concatenated: int64, (sum of counts,)."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    ranked: Indices = np.arange(total) - np.repeat(ends - counts, counts)
    return ranked


def runs(starts: Indices, lengths: Indices) -> Indices:
    """Return start … start + length - 1 for each pair, concatenated: int64."""
    return np.repeat(starts, lengths) + ranks(lengths)


def firsts(sizes: Indices, counts: Indices, *keys: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return a mask of the first items of each row, for concatenated rows.

    Args:
        sizes: (rows,) number of items of each row.
        counts: (rows,) number of items to choose from each row.
        keys: (items,) sort keys within a row: the first key decides, later keys break ties, and
            then the position.
    """
    row = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((*reversed(keys), row))
    chosen = np.zeros(len(row), np.bool_)
    chosen[order[ranks(sizes) < np.repeat(counts, sizes)]] = True
    return chosen


def offsets_of(counts: npt.NDArray[Any]) -> Indices:
    """Return the start of each run with these lengths and, last, the total: int64."""
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def bounds_of(offsets: Indices, at_once: int) -> list[int]:
    """Return the bounds of chunks of users with at most `at_once` items each.

    User u has the items offsets[u] : offsets[u + 1]. A user with more items is a chunk alone.
    """
    bounds = [0]
    while bounds[-1] < len(offsets) - 1:
        first = bounds[-1]
        until = int(np.searchsorted(offsets, offsets[first] + at_once, side="right")) - 1
        bounds.append(max(first + 1, until))
    return bounds

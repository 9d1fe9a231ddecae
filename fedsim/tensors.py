"""Parameters, updates and sums as one plain value: a dict from parameter name to tensor.

Every function here is pure: it returns new tensors and leaves its arguments alone,
except `add_`, whose underscore says that it writes into its first argument.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

Tensors = Mapping[str, torch.Tensor]


def zeros_like(layout: Tensors, dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    """Return zeros with the names and shapes of `layout` (and its dtypes, unless one is given)."""
    return {name: torch.zeros_like(value, dtype=dtype) for name, value in layout.items()}


def check_same_layout(expected: Tensors, given: Tensors) -> None:
    """Raise `ValueError` unless both have the same names and, name by name, the same shapes."""
    if expected.keys() != given.keys():
        missing = sorted(expected.keys() - given.keys())
        unknown = sorted(given.keys() - expected.keys())
        raise ValueError(f"parameter names differ: missing {missing}, unknown {unknown}")
    for name, value in expected.items():
        if value.shape != given[name].shape:
            raise ValueError(
                f"parameter {name!r} has shape {tuple(given[name].shape)}, "
                f"expected {tuple(value.shape)}"
            )


def add(left: Tensors, right: Tensors) -> dict[str, torch.Tensor]:
    """Return left + right, name by name; a different layout is a `ValueError`."""
    check_same_layout(left, right)
    return {name: value + right[name] for name, value in left.items()}


def add_(total: dict[str, torch.Tensor], update: Tensors, scale: float = 1.0) -> None:
    """Add scale * update into `total`, in the dtype of `total`."""
    check_same_layout(total, update)
    for name, value in total.items():
        value.add_(update[name].to(value.dtype), alpha=scale)


def scale(tensors: Tensors, factor: float) -> dict[str, torch.Tensor]:
    """Return factor * tensors."""
    return {name: value * factor for name, value in tensors.items()}


def to_dtype(tensors: Tensors, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the same values in another dtype (no copy where the dtype already holds)."""
    return {name: value.to(dtype) for name, value in tensors.items()}


def l2_norm(tensors: Tensors) -> float:
    """Return the L2 norm over all entries of all tensors, summed in float64.

    Float64 because a clip decides by this number: a float32 sum of many squares can read
    low by more than the rounding that the clip allows for. An empty dict has norm 0.
    """
    return math.sqrt(sum(float(value.double().square().sum()) for value in tensors.values()))


def all_finite(tensors: Tensors) -> bool:
    """Return whether no entry is NaN or infinite."""
    return all(bool(torch.isfinite(value).all()) for value in tensors.values())

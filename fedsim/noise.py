"""Gaussian noise in the layout of an estimate."""

from __future__ import annotations

import math

import numpy as np
import torch

from fedsim.seeding import RandomSource
from fedsim.tensors import Tensors


def gaussian(layout: Tensors, stddev: float, source: RandomSource) -> dict[str, torch.Tensor]:
    """Return independent N(0, stddev²) for every entry of `layout`, float64.

    Drawn in the order of the sorted names, so that the bits depend on the layout alone.
    A stddev of 0 draws nothing and returns zeros; negative, NaN or infinite is a `ValueError`.
    """
    if not 0.0 <= stddev < math.inf:
        raise ValueError(f"stddev = {stddev}: must be finite and not negative")
    if stddev == 0.0:
        return {
            name: torch.zeros_like(value, dtype=torch.float64) for name, value in layout.items()
        }
    drawn: dict[str, torch.Tensor] = {}
    for name in sorted(layout):
        value = layout[name]
        normals = np.asarray(source.standard_normal(value.numel()), dtype=np.float64)
        drawn[name] = (torch.from_numpy(normals) * stddev).reshape(value.shape).to(value.device)
    return {name: drawn[name] for name in layout}

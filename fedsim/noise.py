"""Gaussian noise, added to an estimate where it is, and the grid that the sum is rounded to."""

from __future__ import annotations

import math

import numpy as np
import torch

from fedsim.seeding import RandomSource

GRID_BITS = 16
"""A release is a multiple of a power of two that is this many bits below the noise's deviation."""

_LEAST = 2.0**-900  # below, a step of the grid would be no float64


def add_gaussian_(
    estimate: dict[str, torch.Tensor], stddev: float, source: RandomSource
) -> dict[str, torch.Tensor]:
    """Add independent N(0, stddev²) to every entry of `estimate`, in place, and return it.

    The sum is rounded to a multiple of `grid_step(stddev)`. The sum of two floats has low bits that
    tell of both (Mironov 2012; Haney et al. 2022); a multiple of the step has none, and each
    stands for some 2^30 values of the noise, whose holes it covers. Rounding what is released
    costs no privacy, and adds a 2^-36th of the noise's variance at most.

    Drawn on the CPU in float64, in the order of the sorted names, so that the bits depend on the
    layout alone and not on the device. One tensor at a time: the noise of a whole model would be
    as large as the estimate again. Drawing takes far longer than moving what was drawn to a GPU.

    A stddev of 0 draws nothing; negative, NaN, infinite or below 2^-900 is a `ValueError`.

    Examples:
        >>> from fedsim.seeding import stream
        >>> noisy = add_gaussian_({"w": torch.zeros(10_000).double()}, 2.0, stream(0, "noise"))
        >>> abs(float(noisy["w"].std()) - 2.0) < 0.1
        True
        >>> add_gaussian_({"w": torch.zeros(1)}, 0.0, stream(0, "noise"))["w"].item()
        0.0
    """
    if stddev == 0.0:
        return estimate
    step = grid_step(stddev)
    for name in sorted(estimate):
        value = estimate[name]
        drawn = np.asarray(source.standard_normal(value.numel()), dtype=np.float64)
        noise = torch.from_numpy(drawn).mul_(stddev).view(value.shape)
        value.add_(noise.to(value.device)).div_(step).round_().mul_(step)
    return estimate


def grid_step(stddev: float) -> float:
    """Return the power of two, 2^-16 to 2^-17 times the deviation, that releases are rounded to.

    Raises:
        ValueError: the deviation is not in [2^-900, inf).
    """
    if not _LEAST <= stddev < math.inf:
        raise ValueError(f"stddev = {stddev}: must be finite, and 0 or at least {_LEAST:.0e}")
    _, exponent = math.frexp(stddev)
    return math.ldexp(1.0, exponent - 1 - GRID_BITS)

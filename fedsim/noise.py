"""Gaussian noise on an estimate, rounded to a grid; and the margin for rounded sums.

How far rounding lets one unit move a sum beyond its own clipped update, as the noise covers it:
A unit adds at most the clip's bound S. But float32 sums are rounded, and how the others' updates
are rounded depends on who is there. What the noise is scaled to is therefore not S but
S·(1 + `rounding_share(W)`), W the weight of all units in the sum: 2⁻¹⁸·W, or 0.04 % for W = 100.
The share is of two sums, with and without the unit. Three parts, u = 2⁻²⁴:

- *Proved*: 48u·W. The engine `materialised` adds clipped rows in float32, where a term is rounded
  24 times at most, each 128 rows (`sum_of_rows` in `clipped_sums`); either sum is within 24u·W·S of
  the exact one. So does `ghost` with units of many positions. From there on, across chunks, shards
  and nodes, and from the first unit on in local training, the engines `loop` and `vmap` and under
  Flower, sums are float64: their rounding is at most n·2⁻⁵³·W·S for n units.
- *Measured, not proved*: the other 16u·W are for what has no proved bound. `ghost` adds the other
  units by one matrix product over the positions of all; any order of summation is allowed to be off
  by as many u as there are positions, times lengths that may exceed S. And the last bits of
  every unit's own gradient depend on the shape of the pass that computed it.
  `tests/privacy/test_engine_sensitivity.py` measures both, several hundred units that a newcomer
  shifts from one chunk and pass to another, the units all alike (so that all are off the same way)
  or all different.
- *Not covered*: steps. A unit whose numbers are not finite for the padding that another brings, or
  whose ghost norm is just where pairs become too inexact, is computed in another way, with a
  margin of the clip that differs by 10⁻⁴ at most.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from fedsim.seeding import RandomSource

GRID_BITS = 16
"""A release is a multiple of a power of two that is this many bits below the noise's deviation."""

_SHARE = 2.0**-18  # of the bound, a unit of weight
_LOG_RARE = 20.0 * math.log(10.0)  # sums of more weight than `most_weight` are rarer than 1e-20
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


def rounding_share(weight: float) -> float:
    """Return the share of the bound by which a unit moves the rounding of so much weight.

    Examples:
        >>> f"{rounding_share(1000.0):.2g}"
        '0.0038'
    """
    return _SHARE * weight


def most_weight(expected: float, total: float) -> float:
    """Return what the weight of a round's units exceeds with probability 1e-20 at most.

    Bernstein's inequality for independent weights in [0, 1] and coins: over μ + t with probability
    exp(-t²/(2μ + 2t/3)) at most. It holds for a cohort of a fixed size, drawn without
    replacement, too (Hoeffding 1963, Theorem 4), and a cap only makes the weight smaller.

    Args:
        expected: μ.
        total: of all units, drawn or not.

    Examples:
        >>> round(most_weight(100.0, 10_000.0), 2)
        212.54
        >>> most_weight(100.0, 100.0)
        100.0
    """
    third = _LOG_RARE / 3.0
    return min(total, expected + third + math.sqrt(third**2 + 2.0 * _LOG_RARE * expected))

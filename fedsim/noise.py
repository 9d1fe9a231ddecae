"""Gaussian noise, added to an estimate where it is."""

from __future__ import annotations

import math

import numpy as np
import torch

from fedsim.seeding import RandomSource


def add_gaussian_(
    estimate: dict[str, torch.Tensor], stddev: float, source: RandomSource
) -> dict[str, torch.Tensor]:
    """Add independent N(0, stddev²) to every entry of `estimate`, in place, and return it.

    Drawn on the CPU in float64, in the order of the sorted names, so that the bits depend on the
    layout alone and not on the device. One tensor at a time: the noise of a whole model would be
    as large as the estimate again. Drawing takes far longer than moving what was drawn to a GPU.

    A stddev of 0 draws nothing; negative, NaN or infinite is a `ValueError`.

    Examples:
        >>> from fedsim.seeding import stream
        >>> noisy = add_gaussian_({"w": torch.zeros(10_000).double()}, 2.0, stream(0, "noise"))
        >>> abs(float(noisy["w"].std()) - 2.0) < 0.1
        True
        >>> add_gaussian_({"w": torch.zeros(1)}, 0.0, stream(0, "noise"))["w"].item()
        0.0
    """
    if not 0.0 <= stddev < math.inf:
        raise ValueError(f"stddev = {stddev}: must be finite and not negative")
    if stddev == 0.0:
        return estimate
    for name in sorted(estimate):
        value = estimate[name]
        drawn = np.asarray(source.standard_normal(value.numel()), dtype=np.float64)
        noise = torch.from_numpy(drawn).mul_(stddev).view(value.shape)
        value.add_(noise.to(value.device))
    return estimate

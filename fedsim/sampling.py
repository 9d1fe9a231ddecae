"""Who takes part in a round. The draw and the law that is accounted live in one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedsim.seeding import RandomSource


@dataclass(frozen=True)
class PoissonSampling:
    """Every unit flips its own coin: the cohort's size is Binomial(num_units, probability).

    This is the sampling that the amplification theorems are about (Charles et al. 2024,
    Algorithms 1 and 2; McMahan et al. 2018, §2 A). A cohort of fixed size is another law with
    another price, so there is no such option here.

    Attributes:
        probability: in (0, 1]; 1 takes every unit every round.
    """

    probability: float
    name: ClassVar[str] = "Poisson sampling"

    def __post_init__(self) -> None:
        if not 0.0 < self.probability <= 1.0:
            raise ValueError(f"probability = {self.probability}: must be in (0, 1]")

    def draw(self, num_units: int, source: RandomSource) -> npt.NDArray[np.int64]:
        """Return the indices of the units whose coin fell, ascending; possibly none."""
        return np.flatnonzero(source.random(num_units) < self.probability).astype(np.int64)

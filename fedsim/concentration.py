"""The Asi & Liu filter: who is near whom, and how concentrated all are.

Algorithm 3 in App. A of Chua et al. 2024, on the gradients of all N users. Everything is a
function of the pairwise distances, computed in float64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

_COLUMNS = 65_536  # of the gradients that are float64 at once

Matrix = npt.NDArray[np.float64]


def distances(gradients: torch.Tensor) -> Matrix:
    """Return (users, users) float64: L2 distances between the rows of (users, parameters).

    By ‖a‖² + ‖b‖² - 2ab, a block of columns at a time: below about 1e-8 of the norms a distance is
    rounding. The diagonal is 0.
    """
    gram = torch.zeros(len(gradients), len(gradients), dtype=torch.float64)
    for start in range(0, gradients.shape[1], _COLUMNS):
        block = gradients[:, start : start + _COLUMNS].double()
        gram += block @ block.T
    squares = gram.diagonal()
    squared = (squares[:, None] + squares[None, :] - 2.0 * gram).clamp_(min=0.0)
    squared.fill_diagonal_(0.0)
    return squared.sqrt_().numpy()


def concentration_score(between: Matrix, radius: float) -> float:
    """Return s, eq. 1: how many pairs are within τ, over N; N at most, counting (i, i) too."""
    return float(np.count_nonzero(between <= radius)) / len(between)


def filter_weights(between: Matrix, radius: float) -> npt.NDArray[np.float64]:
    """Return p, line 12: 0 for a user with under N/2 users within 2τ, 1 from 2N/3 on, else linear.

    The paper keeps a user with this probability. Here it is the user's weight in the mean: its
    expectation is near the same, and what one user moves is then bounded for certain. With coins
    the number of others who change sides has a tail, which the noise would have to cover.
    """
    count = len(between)
    near = np.count_nonzero(between <= 2.0 * radius, axis=1)
    weights: npt.NDArray[np.float64] = ((near - count / 2.0) / (count / 6.0)).clip(0.0, 1.0)
    return weights

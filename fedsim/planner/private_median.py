"""A differentially private median of positive numbers, one a user: the exponential mechanism.

The candidates are a public grid, 2^(1/4) apart, so that nothing but the choice tells of the data.
A candidate scores minus the larger of the number of users below it and the number above it, which
is best at the median. A user who is added raises one of the two by 1 and lowers none: the score
has sensitivity 1 and moves one way, so weights exp(ε score) are ε-differentially private under
add-or-remove-one. Replacing a user can raise one and lower the other, which takes exp(ε score/2)
(McSherry and Talwar 2007).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedsim.sampling import Relation
from fedsim.seeding import RandomSource

_STEPS, _OCTAVES = 4, 20  # of the grid: steps an octave, octaves on either side of 1
_EDGES = 2.0 ** (np.arange(-_OCTAVES * _STEPS, _OCTAVES * _STEPS + 1) / _STEPS)
CANDIDATES: npt.NDArray[np.float64] = _EDGES * 2.0 ** (-0.5 / _STEPS)
"""The public answers: the geometric middles of the bins that end at the grid's points."""


def private_median(
    values: npt.NDArray[np.float64], epsilon: float, relation: Relation, source: RandomSource
) -> float:
    """Return one of `CANDIDATES`, ε-differentially private with a user as the unit.

    δ is 0 but for the steps of the uniform that is drawn: candidates whose probability is less than
    2⁻⁵³, all together some 10⁻¹⁴, may never come.

    Args:
        values: one a user, >= 0; what lies beyond the grid, infinite or NaN counts as its end.
            May be empty: every candidate is as likely then.
        epsilon: > 0, of this one answer.
        relation: which neighbours it holds for.
        source: one uniform is drawn.
    """
    logs = epsilon * scores(values) / _sensitivity(relation)
    weights = np.cumsum(np.exp(logs - logs.max()))
    drawn = float(source.random(1)[0]) * weights[-1]
    return float(CANDIDATES[min(int(np.searchsorted(weights, drawn, "right")), len(weights) - 1)])


def rank_error(epsilon: float, relation: Relation) -> int:
    """Return by how many users an answer's score is below the best, but for 5 times of 100.

    A public number: McSherry and Talwar's bound on the exponential mechanism.
    """
    return math.ceil(_sensitivity(relation) * math.log(len(CANDIDATES) / 0.05) / epsilon)


def _sensitivity(relation: Relation) -> float:
    return 1.0 if relation is Relation.ADD_OR_REMOVE else 2.0


def scores(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return each candidate's score: minus the larger number of users on one side of its bin."""
    finite = np.where(np.isnan(values), math.inf, values)
    bins = np.minimum(np.searchsorted(_EDGES, finite, "left"), len(_EDGES) - 1)
    counts = np.bincount(bins, minlength=len(_EDGES))
    up_to = np.cumsum(counts)
    return np.asarray(-np.maximum(up_to - counts, len(values) - up_to), dtype=np.float64)

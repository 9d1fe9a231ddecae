"""Private held-out loss and accuracy: noisy scores that ε covers.

Each scored user adds one vector: (mean loss / `loss_bound` - 1/2, accuracy - 1/2, 1). Its norm is
at most √1.5. The vector does not depend on other users, because each user's text is scored
separately. The sum is released with Gaussian noise; the scores are quotients of its entries.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from fedsim.data.store import Indices, TokenStore
from fedsim.evaluation.scoring import owners, score_examples
from fedsim.language_model import LanguageModel
from fedsim.noise.gaussian import release_
from fedsim.report.schema import CoveredScores
from fedsim.seeding import NoiseKey
from fedsim.tensors import Tensors

_GRID = 2.0**-20  # vectors are rounded to multiples of it, so that sums are exact in any order
SENSITIVITY = math.sqrt(1.5) + 4.0 * _GRID
"""L2 sensitivity of the sum to one user, with rounding to the grid."""


def private_scores(
    model: LanguageModel,
    parameters: Tensors,
    store: TokenStore,
    examples: Indices,
    *,
    loss_bound: float,
    noise_multiplier: float,
    key: NoiseKey,
) -> CoveredScores:
    """Return the scores of a model on users' held-out examples, from one noisy sum.

    Args:
        model: the network.
        parameters: weights of the network.
        store: token store of the texts.
        examples: indices of held-out examples; a user's examples must not depend on other users.
        loss_bound: upper bound in nats; a larger mean loss of a user, or NaN, counts as the bound.
        noise_multiplier: noise standard deviation divided by `SENSITIVITY`.
        key: key of the noise.
    """
    users_of = owners(store, examples)
    vectors = [
        vector
        for user in np.unique(users_of)
        if (vector := _vector(model, parameters, store, examples[users_of == user], loss_bound))
        is not None
    ]
    total = torch.from_numpy(np.sum(vectors, axis=0) if vectors else np.zeros(3))
    stddev = noise_multiplier * SENSITIVITY
    released, _ = release_({"scores": total}, 1.0, stddev, key)
    loss, accuracy, count = released["scores"].tolist()
    users = max(count, 1.0)
    share, accuracy = (min(max(total / users + 0.5, 0.0), 1.0) for total in (loss, accuracy))
    return CoveredScores(
        loss=loss_bound * share,
        accuracy_top1=accuracy,
        users=users,
        loss_stddev=loss_bound * stddev * math.hypot(1.0, share - 0.5) / users,
    )


def _vector(
    model: LanguageModel, parameters: Tensors, store: TokenStore, examples: Indices, bound: float
) -> npt.NDArray[np.float64] | None:
    """Return one user's vector, (3,); None without a predicted token."""
    scores = score_examples(model, parameters, store, examples)
    tokens = int(scores.tokens.sum())
    if not tokens:
        return None
    loss = math.fsum(scores.nats) / tokens
    share = min(loss / bound, 1.0) if loss >= 0.0 else 1.0  # NaN counts as the bound
    values = np.array([share - 0.5, int(scores.correct.sum()) / tokens - 0.5, 1.0])
    return np.asarray(np.round(values / _GRID) * _GRID, dtype=np.float64)

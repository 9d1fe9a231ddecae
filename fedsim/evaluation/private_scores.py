"""Held-out loss and accuracy with noise of their own: scores that ε covers.

Each user whose text is scored adds one vector, (their mean loss over `loss_bound` - 1/2, their
accuracy - 1/2, 1), of a norm of at most √1.5, whoever else is there: their text goes through the
network by itself. The sum is released with Gaussian noise; the scores are its quotients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fedsim.data.store import Indices, TokenStore
from fedsim.evaluation.scoring import owners, score_examples
from fedsim.language_model import LanguageModel
from fedsim.noise.gaussian import release_
from fedsim.seeding import NoiseKey
from fedsim.tensors import Tensors

_GRID = 2.0**-20  # of a user's vector: sums of multiples are exact, in whatever order
SENSITIVITY = math.sqrt(1.5) + 4.0 * _GRID
"""The most that a user moves the sum, in L2, the grid included."""


@dataclass(frozen=True)
class PrivateScores:
    """Scores of a release.

    Attributes:
        loss: mean over users of each one's nats a predicted token, at most the bound.
        accuracy_top1: mean over users of each one's share of right predictions.
        users: how many there are, by the same release; not whole, at least 1.
        loss_stddev: the standard deviation that the noise gives to `loss`, to first order.
    """

    loss: float
    accuracy_top1: float
    users: float
    loss_stddev: float


def private_scores(
    model: LanguageModel,
    parameters: Tensors,
    store: TokenStore,
    examples: Indices,
    *,
    loss_bound: float,
    noise_multiplier: float,
    key: NoiseKey,
) -> PrivateScores:
    """Return the scores of a model on users' held-out examples, by one noisy sum.

    Args:
        model: the network.
        parameters: of it.
        store: of the texts.
        examples: held-out ones; nobody's may depend on who else is there.
        loss_bound: in nats; a user's larger mean loss counts as that, and so does NaN.
        noise_multiplier: standard deviation over `SENSITIVITY`.
        key: of the noise.
    """
    whose = owners(store, examples)
    vectors = [
        vector
        for user in np.unique(whose)
        if (vector := _vector(model, parameters, store, examples[whose == user], loss_bound))
        is not None
    ]
    total = torch.from_numpy(np.sum(vectors, axis=0) if vectors else np.zeros(3))
    stddev = noise_multiplier * SENSITIVITY
    released, _ = release_({"scores": total}, 1.0, stddev, key)
    loss, accuracy, count = released["scores"].tolist()
    users = max(count, 1.0)
    share, accuracy = (min(max(total / users + 0.5, 0.0), 1.0) for total in (loss, accuracy))
    return PrivateScores(
        loss=loss_bound * share,
        accuracy_top1=accuracy,
        users=users,
        loss_stddev=loss_bound * stddev * math.hypot(1.0, share - 0.5) / users,
    )


def _vector(
    model: LanguageModel, parameters: Tensors, store: TokenStore, examples: Indices, bound: float
) -> npt.NDArray[np.float64] | None:
    """Return (3,) what one user adds; None without a predicted token."""
    scores = score_examples(model, parameters, store, examples)
    tokens = int(scores.tokens.sum())
    if not tokens:
        return None
    loss = math.fsum(scores.nats) / tokens
    share = min(loss / bound, 1.0) if loss >= 0.0 else 1.0  # NaN is not
    values = np.array([share - 0.5, int(scores.correct.sum()) / tokens - 0.5, 1.0])
    return np.asarray(np.round(values / _GRID) * _GRID, dtype=np.float64)

"""A search for the best of several runs, audited whole.

Every replica draws how many trials it makes; each trial is the plan's real rounds and a private
score of the model, and the replica shows the rounds of the trial with the best one. The score is as
bad for the target as it can be: all other users' held-out losses follow the likelihood ratio of the
trial's releases, so that the best trial is the one that tells most of the target, and the target's
own loss adds to it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from fedsim.accounting.search import Search
from fedsim.evaluation.private_scores import SENSITIVITY
from fedsim.noise.gaussian import release_
from fedsim.seeding import noise_key, stream
from tests.privacy.mechanism_audit.bounds import Scores

_OTHERS = (
    100_000  # users whose text is scored beside the target's: the more, the less noise a score has
)
_FOLLOWS = 0.05  # of the loss bound, that their losses fall for each nat of the ratio

TrialScores = Callable[[int], tuple[Scores, Scores]]
"""Log-likelihood ratios of one trial of each replica, target in and out, by the trial's number."""


def searched_scores(
    search: Search, trial: TrialScores, num_targets: int, seed: int
) -> tuple[Scores, Scores]:
    """Return the ratios of the best trial of each replica, with the target and without.

    Args:
        search: how many trials there are, and the noise of their scores.
        trial: makes one trial of every replica.
        num_targets: replicas of either kind.
        seed: of the search; a trial's is made of it and the trial's number.
    """
    source = stream(seed, "audit", 3)
    numbers = np.array([search.draw(source) for _ in range(2 * num_targets)])
    target = np.repeat([1.0, 0.0], num_targets)
    best, shown = np.full(len(numbers), np.inf), np.zeros(len(numbers))
    for number in range(int(numbers.max())):
        ratios = np.concatenate(trial(number))
        losses = _losses(ratios, target, search.score_noise_multiplier, seed, number)
        better = (number < numbers) & (losses < best)
        best[better], shown[better] = losses[better], ratios[better]
    return shown[:num_targets], shown[num_targets:]


def _losses(ratios: Scores, target: Scores, noise: float, seed: int, number: int) -> Scores:
    """Return a private score of each replica's model, as a share of the loss bound."""
    shares = np.clip(-_FOLLOWS * ratios, -0.5, 0.5)
    sums = np.stack([_OTHERS * shares - 0.5 * target, _OTHERS + target])
    key = noise_key(seed, "scores", number)
    released, _ = release_({"scores": torch.from_numpy(sums)}, 1.0, noise * SENSITIVITY, key)
    loss, users = released["scores"].numpy()
    return np.asarray(np.clip(loss / np.maximum(users, 1.0) + 0.5, 0.0, 1.0))

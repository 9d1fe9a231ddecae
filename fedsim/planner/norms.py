"""L(G), the median norm of users' averaged gradients, from a sample: plain, or private and charged.

Charles et al. 2024, App. I, take the median norm over 128 random users at the starting model. That
is a query on private data which nobody accounts for. `PrivateNorms` asks the same question with
`private_median`, and its cost comes off the ε that is left for training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsim.accounting.rounding import text_up
from fedsim.accounting.statement import Noise, noise_sentence
from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.execution import Keys
from fedsim.materials import Materials
from fedsim.planner.private_median import CANDIDATES, private_median, rank_error
from fedsim.planner.user_gradients import UserGradients
from fedsim.release_seed import release_seed
from fedsim.sampling import Relation
from fedsim.seeding import RandomSource, secret_stream, stream

NUM_USERS = 128  # App. I.1

NON_PRIVATE = (
    "Not private: gradient norms and signal were computed on private data, a query that no "
    "guarantee here accounts for; with --private-norms EPSILON it is."
)
USER_SIZES = (
    "How many users there are, and how many examples they have, was counted in the data and is "
    "treated as public, also where a number of users is declared: cohort or batch size, sampling "
    "probability and noise of this plan follow from it."
)


Draws = Callable[[int], RandomSource]
"""The randomness of a plan by number: 0 is who is asked, the later ones are the answers."""


def draws(config: Config, materials: Materials, *question: object) -> Draws:
    """Return what a plan draws from.

    Secret, each time another release; or, where the config's noise is seeded, from the seed, the
    text and the question: the same question has the same answer and tells nothing new, another
    question or another text has draws of its own.

    Args:
        config: of the run that is planned.
        materials: of the config.
        question: what is asked, as JSON values: ε and the group sizes.
    """
    if config.privacy.noise == "secure":
        return lambda _draw: secret_stream()
    seed = release_seed(config, materials, "planning", *question)
    return lambda draw: stream(seed, "planning", draw)


def random_users(source: RandomSource, num_users: int) -> Keys:
    """Return 128 random users, or all where there are fewer."""
    order = np.argsort(source.random(num_users), kind="stable")
    return np.sort(order[:NUM_USERS]).astype(np.int64)


def coin_users(source: RandomSource, num_users: int, public: int) -> Keys:
    """Return about 128 users, each by a coin of their own: who else is there changes nobody's."""
    coins = source.random(num_users)
    return np.flatnonzero(coins < NUM_USERS / public).astype(np.int64)


@dataclass
class Norms:
    """Medians as they are, asked for one by one."""

    gradients: UserGradients
    asked: dict[int, float] = field(default_factory=dict)

    def __call__(self, group_size: int) -> float:
        """Return L(G).

        Raises:
            ConfigError: zero, infinite or NaN: no clip norm can be made of it.
        """
        if group_size not in self.asked:
            self.asked[group_size] = self._ask(group_size)
        norm = self.asked[group_size]
        if not 0.0 < norm < np.inf:
            raise ConfigError(
                f"model: the median norm of users' gradients at the starting model is {norm}; "
                "train other parameters, or start from another model"
            )
        return norm

    def _ask(self, group_size: int) -> float:
        return self.gradients.median_norm(group_size)


@dataclass(kw_only=True)
class PrivateNorms(Norms):
    """Differentially private medians, an equal part of `epsilon` for each of a fixed set of G.

    Attributes:
        unit: whose guarantee it is.
        draws: where the randomness comes from.
        noise: whether that is secret.
        relation: that the training's guarantee is for.
        epsilon: of all answers together (basic composition), δ = 0.
        group_sizes: those that may be asked for, fixed before any answer is seen. All are
            charged, whether or not they are asked.
    """

    unit: str
    draws: Draws
    noise: Noise
    relation: Relation
    epsilon: float
    group_sizes: Sequence[int]

    @property
    def epsilon_each(self) -> float:
        """What one answer costs."""
        return self.epsilon / len(self.group_sizes)

    def _ask(self, group_size: int) -> float:
        number = 1 + list(self.group_sizes).index(group_size)
        values = self.gradients.norms(group_size)
        return private_median(values, self.epsilon_each, self.relation, self.draws(number))

    def sentence(self, epsilon_left: float, delta: float, guaranteed: bool) -> str:
        """Say what was spent, what is left for training, and what both promise together."""
        terms = f"unit: {self.unit}; relation: {self.relation.phrase}"
        share = ", ".join(f"G = {size}" for size in self.group_sizes)
        total = (
            f"queries and training together are (ε = {text_up(self.epsilon + epsilon_left)}, "
            f"δ = {text_up(delta)})-differentially private by basic composition ({terms}; sampler "
            "and accountant of the training as stated)"
            if guaranteed
            else "what training costs is hypothetical with this sampler, and so is any total"
        )
        return (
            f"{len(self.group_sizes)} medians of gradient norms ({share}) by the exponential "
            f"mechanism over {len(CANDIDATES)} public candidates cost "
            f"ε = {text_up(self.epsilon_each)}, δ = 0 each and ε = {text_up(self.epsilon)}, δ = 0 "
            f"together, and each is within {rank_error(self.epsilon_each, self.relation):,} of the "
            f"median in the order of the users' norms with probability 95 % ({terms}; sampler: a "
            "coin a user, whose amplification is not claimed; accountant: basic composition). They "
            "are taken off: training is left "
            f"ε = {text_up(epsilon_left)}, δ = {text_up(delta)}, so that {total}. "
            f"{noise_sentence(self.noise)}"
        )

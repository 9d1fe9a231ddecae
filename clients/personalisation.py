"""Personalisation: train on half of a user's examples for some epochs, score on the other half.

Charles et al. 2024, App. J.2. A user takes local steps as in DP-FedAvg, without clipping, sums or
noise. The personalised models are not released.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fedsim.clients.tasks.fedavg import LocalSteps, local_steps
from fedsim.config import FedAvg
from fedsim.data.store import Indices, TokenStore
from fedsim.evaluation.scoring import score_examples
from fedsim.execution import Unit
from fedsim.language_model import LanguageModel
from fedsim.seeding import stream
from fedsim.tensors import Tensors
from fedsim.utils.terminal import every_half_minute


@dataclass(frozen=True, eq=False)
class Personalised:
    """Scores with one entry per user, on the half of the examples that the user did not train on.

    Attributes:
        users: the store's indices; those with fewer than two examples are left out.
        without: nats per predicted token with the given parameters.
        after: nats per predicted token with the user's own parameters.
        tokens: number of predicted tokens.
        num_left_out: number of users with fewer than two examples.
    """

    users: Indices
    without: npt.NDArray[np.float64]
    after: npt.NDArray[np.float64]
    tokens: Indices
    num_left_out: int


def personalise(
    model: LanguageModel,
    parameters: Tensors,
    store: TokenStore,
    users: Indices,
    *,
    training: FedAvg,
    seed: int,
) -> Personalised:
    """Train and score each user separately; halves and batches depend on (seed, user) alone."""
    eligible = [int(user) for user in users if len(store.user_examples(int(user))) > 1]
    on_device = {name: value.to(model.device) for name, value in parameters.items()}
    pairs = [_halves(store, user, seed) for user in eligible]
    without, after, tokens = (np.zeros(len(eligible)) for _ in range(3))
    steps = LocalSteps(training.learning_rate)
    tell = every_half_minute("personalising (not protected by the privacy guarantee)")
    for place, (user, (own, reserved)) in enumerate(zip(eligible, pairs, strict=True)):
        unit, batches = _local_user(store, user, own, training, seed)
        trained, _ = local_steps(model, on_device, unit, batches, steps)
        before = score_examples(model, on_device, store, reserved)
        then = score_examples(model, trained, store, reserved)
        tokens[place] = before.tokens.sum()
        without[place], after[place] = before.nats.sum(), then.nats.sum()
        tell(f"{place + 1:,} of {len(eligible):,} users")
    with np.errstate(invalid="ignore", divide="ignore"):
        without, after = without / tokens, after / tokens
    kept = np.array(eligible, np.int64)
    return Personalised(kept, without, after, tokens.astype(np.int64), len(users) - len(kept))


def _halves(store: TokenStore, user: int, seed: int) -> tuple[Indices, Indices]:
    """Return the examples to train on and the examples to score (as many, or one more)."""
    examples = store.user_examples(user)
    order = stream(seed, "personalisation", 0, int(store.user_keys[user])).permutation(
        len(examples)
    )
    middle = len(examples) // 2
    return np.sort(examples[order[:middle]]), np.sort(examples[order[middle:]])


def _local_user(
    store: TokenStore, user: int, examples: Indices, training: FedAvg, seed: int
) -> tuple[Unit, list[torch.Tensor]]:
    tokens, lengths = (torch.from_numpy(part) for part in store.padded(examples))
    batches: list[torch.Tensor] = []
    for epoch in range(training.epochs):
        shuffling = stream(seed, "personalisation", 1 + epoch, int(store.user_keys[user]))
        order = torch.from_numpy(shuffling.permutation(len(examples)))
        batches += torch.split(order, training.batch_size)
    return Unit(user, tokens, lengths), batches

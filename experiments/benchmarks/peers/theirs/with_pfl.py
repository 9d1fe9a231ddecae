"""DP-FedSGD and DP-FedAvg with pfl's simulated backend: local training, central clip, sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.common_types import Population
from pfl.context import CentralContext
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism, NormClippingOnly
from torch import nn

from .networks import Gpt, Lstm, build, mean_losses


class Learner(nn.Module):
    """The network with the two methods that pfl requires."""

    def __init__(self, network: Gpt | Lstm) -> None:
        super().__init__()
        self.network = network

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch."""
        return mean_losses(self.network(tokens), tokens).mean()

    def metrics(self, tokens: torch.Tensor) -> dict[str, Any]:
        """Return the metrics of an evaluation; not used here."""
        return {"loss": Weighted(self.loss(tokens).item(), len(tokens))}


def prepare(
    request: dict[str, Any],
) -> tuple[Callable[[], dict[str, torch.Tensor]], dict[str, Any]]:
    """Return a function that computes Σ clip(θ_server − θ_local) over all users, and notes.

    The request has `weights` and `tokens` (users, examples, length) as paths, `clip`,
    `learning_rate` and `batch_size`, None for all of a user's examples at once.
    """
    tokens = torch.from_numpy(np.load(request["tokens"]))
    users = len(tokens)
    network = build(request["weights"])
    learner = Learner(network)
    model = PyTorchModel(learner, torch.optim.SGD, torch.optim.SGD(learner.parameters(), lr=1.0))
    data = FederatedDataset(lambda user: Dataset([tokens[user]], user_id=str(user)), _all(users))
    mechanism = CentrallyAppliedPrivacyMechanism(NormClippingOnly(2, request["clip"]))
    backend = SimulatedBackend(data, data, postprocessors=[mechanism])
    algorithm = FederatedAveraging()
    context = CentralContext(
        current_central_iteration=1,
        do_evaluation=False,
        cohort_size=users,
        population=Population.TRAIN,
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=2,
            evaluation_frequency=2,
            train_cohort_size=users,
            val_cohort_size=None,
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=request["learning_rate"],
            local_batch_size=request["batch_size"],
        ),
        seed=0,
    )

    def compute() -> dict[str, torch.Tensor]:
        statistics, _ = backend.gather_results(model, algorithm, central_context=context)
        return _exported(network, statistics)

    return compute, {}


def _all(users: int) -> Callable[[], int]:
    """Return a sampler that cycles through all users."""
    drawn = 0

    def sample() -> int:
        nonlocal drawn
        drawn += 1
        return (drawn - 1) % users

    return sample


def _exported(network: Gpt | Lstm, statistics: Any) -> dict[str, torch.Tensor]:  # noqa: ANN401 (pfl has no types)
    moved = {name.removeprefix("network."): -value for name, value in statistics.items()}
    return network.exported(moved)

"""DP-FedAvg: a user's update is the parameters before its local training minus those after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from fedsim.clients.models.dropout import at_step
from fedsim.clients.tasks.gradients import mean_gradient
from fedsim.clients.tasks.user_examples import UserTask
from fedsim.data.selection import CohortRule
from fedsim.execution import Unit, Update
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials
from fedsim.seeding import base, hashes
from fedsim.tensors import Tensors, zeros_like


@dataclass(frozen=True)
class LocalSteps:
    """A local step: θ ← θ − rate·v with v ← momentum·v + ∇f(θ) + proximal·(θ − θ_server).

    Attributes:
        learning_rate: learning rate of the first step.
        momentum: factor on the previous v, below 1; v starts at zero.
        proximal: FedProx's μ (Li et al. 2020): pulls the user's parameters to the server's.
        schedule: "constant", or "linear": the rate falls linearly and is 0 after the last step.
    """

    learning_rate: float
    momentum: float = 0.0
    proximal: float = 0.0
    schedule: Literal["constant", "linear"] = "constant"

    def rate(self, step: int, num_steps: int) -> float:
        """Return the learning rate of `step`, from 0, for a user who takes `num_steps` steps.

        Examples:
            >>> [LocalSteps(0.5, schedule="linear").rate(step, 2) for step in range(2)]
            [0.5, 0.25]
        """
        left = 1.0 - step / num_steps if self.schedule == "linear" else 1.0
        return self.learning_rate * left


class LocalSGD(UserTask):
    """The task of ULS with `local = { task = "fedavg" }` (UserUpdateFedAvg, McMahan et al. 2018).

    The update is θ_server − θ_local, so that the server's optimizer takes it as a gradient; with
    SGD at learning rate 1 the server adds the mean difference, as the paper prints it. The clip
    is applied once, to the whole difference.

    Attributes:
        steps: rule of the local steps.
        batch_size: maximum number of examples of a local step.
    """

    averages_gradients: ClassVar[bool] = False

    def __init__(
        self,
        materials: Materials,
        *,
        group_size: int,
        selection: CohortRule = "random",
        user_weight_cap: int | None = None,
        epochs: int = 1,
        batch_size: int = 8,
        learning_rate: float = 0.1,
        momentum: float = 0.0,
        proximal: float = 0.0,
        schedule: Literal["constant", "linear"] = "constant",
    ) -> None:
        super().__init__(
            materials,
            group_size=group_size,
            selection=selection,
            user_weight_cap=user_weight_cap,
            streams=True,  # they also shuffle a user's examples
        )
        self.steps = LocalSteps(learning_rate, momentum, proximal, schedule)
        self.batch_size = min(batch_size, group_size)  # a user has no more examples
        self._epochs = epochs

    def batches(self, unit: Unit, round: int) -> Iterator[torch.Tensor]:
        """Yield the rows of `unit.tokens` that each local step takes, (rows,) int64.

        There are `epochs` passes in shuffled batches; the last batch of a pass may be short. The
        order follows hashes of the examples' streams. It depends only on the seed, the round, the
        user and the examples, not on their positions. A unit without examples has no batches.

        Raises:
            ValueError: a unit with examples but without streams, which another task made.
        """
        count = len(unit.lengths)
        if count == 0:
            return
        if unit.streams is None:
            raise ValueError(f"unit {unit.key}: has no streams; units come from `LocalSGD.units`")
        shuffling = hashes(base(self._seed, "local", round), unit.streams.numpy().view(np.uint64))
        for epoch in range(self._epochs):
            order = torch.from_numpy(
                np.argsort(hashes(shuffling, np.array([epoch])), kind="stable")
            )
            for start in range(0, count, self.batch_size):
                yield order[start : start + self.batch_size]

    def update(self, parameters: Tensors, unit: Unit, round: int) -> Update:
        """Take a step for each of `batches`.

        The loss is that of the first pass, while the parameters change.
        """
        batches = list(self.batches(unit, round))
        local, loss = local_steps(self.model, parameters, unit, batches, self.steps)
        moved = {name: value - local[name] for name, value in parameters.items()}
        return Update(moved, loss=loss, num_gradients=sum(map(len, batches)))


def local_steps(
    model: LanguageModel,
    parameters: Tensors,
    unit: Unit,
    batches: Sequence[torch.Tensor],
    steps: LocalSteps,
) -> tuple[dict[str, torch.Tensor], float]:
    """Return the parameters after a step on each batch of a unit's rows, and the loss.

    The loss is the mean over the first pass through the examples, before each of its steps.
    """
    count = len(unit.lengths)
    local = {name: value.detach().clone() for name, value in parameters.items()}
    velocity = zeros_like(local) if steps.momentum else {}
    loss, seen = 0.0, 0
    for number, rows in enumerate(batches):
        streams = at_step(unit.streams, number)
        batch = Unit(
            unit.key,
            unit.tokens[rows],
            unit.lengths[rows],
            streams=None if streams is None else streams[rows],
        )
        step = mean_gradient(model, local, batch)
        rate = steps.rate(number, len(batches))
        for name, value in local.items():
            slope = step.values[name]
            if steps.proximal:
                slope = slope + steps.proximal * (value - parameters[name])
            if steps.momentum:
                slope = velocity[name].mul_(steps.momentum).add_(slope)
            value.add_(slope, alpha=-rate)
        loss += step.loss * len(rows) / count if seen < count else 0.0
        seen += len(rows)
    return local, loss

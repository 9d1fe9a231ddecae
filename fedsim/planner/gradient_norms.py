"""L(G): the median norm of sampled users' averaged gradients at the starting model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from fedsim.errors import ConfigError
from fedsim.execution import Keys, Task
from fedsim.materials import Materials
from fedsim.plan import TaskSpec
from fedsim.registry import resolve
from fedsim.seeding import stream
from fedsim.tensors import Tensors, l2_norm

NUM_USERS = 128  # Charles et al. 2024, App. I.1
_AT_ONCE = 16  # number of users per look-up of texts


def random_users(seed: int, num_users: int) -> Keys:
    """Return 128 random users, ascending, or all users if there are fewer."""
    order = np.argsort(stream(seed, "planning").random(num_users), kind="stable")
    return np.sort(order[:NUM_USERS]).astype(np.int64)


@dataclass
class GradientNorms:
    """Norms of the gradients that a run of ULS would clip, for a sample of users.

    With G = 1 they are also the norms for ELS. They depend on private data, and the privacy
    guarantee does not cover them.

    Attributes:
        materials: model and texts.
        task: a user's task; G replaces its option `group_size`.
        users: (sample,) the sampled users, indices of the split.
        medians: L(G) by G, for each G computed so far.
        signals: ‖mean of normalised gradients‖² by G, corrected for the bias of a finite sample.
    """

    materials: Materials
    task: TaskSpec
    users: Keys
    medians: dict[int, float] = field(default_factory=dict, init=False)
    signals: dict[int, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        model = self.materials.model
        start = model.initial_parameters()
        self._start: Tensors = {name: value.to(model.device) for name, value in start.items()}

    def __call__(self, group_size: int) -> float:
        """Return L(G), the median of `norms`; NaN counts as infinite.

        Raises:
            ConfigError: the median is zero or infinite, so it cannot be a clip norm.
        """
        if group_size not in self.medians:
            norms = np.nan_to_num(self.norms(group_size), nan=math.inf, posinf=math.inf)
            self.medians[group_size] = float(np.median(norms))
        median = self.medians[group_size]
        if not 0.0 < median < math.inf:
            raise ConfigError(
                f"model: the median norm of users' gradients at the starting model is {median}; "
                "train other parameters, or start from another model"
            )
        return median

    def norms(self, group_size: int) -> npt.NDArray[np.float64]:
        """Return (sample,) float64: the norm of each user's gradient on at most G examples."""
        options = {**self.task.options, "group_size": group_size}
        task: Task = resolve("tasks", self.task.name, "strategy.local.task")(
            self.materials, **options
        )
        norms = []
        total: dict[str, torch.Tensor] = {}
        for first in range(0, len(self.users), _AT_ONCE):
            for unit in task.units(self.users[first : first + _AT_ONCE], 0):
                update = task.update(self._start, unit, 0).values
                norms.append(l2_norm(update))
                if 0.0 < norms[-1] < math.inf:
                    for name, value in update.items():
                        total[name] = total.get(name, torch.zeros_like(value)) + value / norms[-1]
        count = len(norms)
        if count > 1:  # mean inner product over all pairs of different users
            self.signals[group_size] = (l2_norm(total) ** 2 - count) / (count * (count - 1))
        return np.array(norms, dtype=np.float64)

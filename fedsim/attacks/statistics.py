"""What an attacker makes of a user's samples: the mean, the largest or the least log ratio.

Kandpal et al. 2023, §3, eq. 4, and Table 6. The log ratio of a sample x is log p_θ(x) - log
p_ref(x), each the log-likelihood of the whole sequence: a sum over its predicted tokens, never
divided by their number. The statistic is divided by the number of samples alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from fedsim.attacks.roc import Scores
from fedsim.data.store import Indices, runs

Statistic = Literal["mean", "max", "min"]
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)


@dataclass(frozen=True, eq=False)
class LogRatios:
    """The log ratios of users' samples, user after user.

    Attributes:
        values: (samples,) float64, in nats.
        offsets: (users + 1,) int64: user i has values[offsets[i] : offsets[i + 1]].
    """

    values: npt.NDArray[np.float64]
    offsets: Indices

    def of(self, users: Indices) -> LogRatios:
        """Return those of some users, in the order given."""
        counts = np.diff(self.offsets)[users]
        return LogRatios(
            self.values[runs(self.offsets[users], counts)],
            np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        )

    def statistic(self, which: Statistic, samples: int) -> Scores:
        """Return each user's statistic over the first `samples` samples, (users,).

        Raises:
            ValueError: a user has fewer.
        """
        if samples < 1 or (np.diff(self.offsets) < samples).any():
            raise ValueError(f"samples = {samples}: every user needs at least as many, at least 1")
        first = self.values[self.offsets[:-1, None] + np.arange(samples)]
        result: Scores = getattr(first, which)(axis=1)
        return result

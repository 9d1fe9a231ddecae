"""Learning rate schedules, and averages of the parameters over rounds.

Both depend only on round numbers and released parameters. So they are post-processing and cost no
ε.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedsim.tensors import Tensors


@dataclass(frozen=True)
class RateSchedule:
    """Shares of the learning rate: a warm-up, a decay from 1 to `final_share`, then constant.

    Round t (from 0) of a warm-up of w rounds has the share (t + 1) / (w + 1). After it, at
    x = (t - w) / (rounds - w): 1 if constant; 1 - (1 - f)·x if linear;
    f + (1 - f)·(1 + cos πx) / 2 if cosine; (1 + x·(f⁻² - 1))^(-1/2) if inverse-square-root.

    Attributes:
        kind: shape of the decay after the warm-up.
        rounds: number of rounds of warm-up and decay together, more than `warmup_rounds`.
        warmup_rounds: w, number of rounds of the warm-up.
        final_share: f, in [0, 1]; above 0 for the inverse square root.

    Examples:
        >>> schedule = RateSchedule("linear", rounds=5, warmup_rounds=1, final_share=0.2)
        >>> [round(schedule.share(t), 3) for t in range(7)]
        [0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2]
    """

    kind: Literal["constant", "linear", "cosine", "inverse-square-root"]
    rounds: int
    warmup_rounds: int = 0
    final_share: float = 0.0

    def share(self, round: int) -> float:
        """Return the factor on the learning rate in a round."""
        since = round - self.warmup_rounds
        if since < 0:
            return (round + 1) / (self.warmup_rounds + 1)
        if self.kind == "constant":
            return 1.0
        part, final = min(since / (self.rounds - self.warmup_rounds), 1.0), self.final_share
        if self.kind == "inverse-square-root":
            return 1.0 / math.sqrt(1.0 + part * (final**-2 - 1.0))
        left = 1.0 - part if self.kind == "linear" else (1.0 + math.cos(math.pi * part)) / 2.0
        return final + (1.0 - final) * left


@dataclass(frozen=True)
class Average:
    """A mean of the parameters after each round from round `start`.

    A tail average has equal weights. In an exponential average the n-th newest parameters have
    weight proportional to decay^n; the weights sum to one, without the initial parameters.

    Attributes:
        kind: "exponential" or "tail".
        start: number of initial rounds to skip.
        decay: decay of an exponential average, in [0, 1); None: 0.9.
    """

    kind: Literal["exponential", "tail"]
    start: int
    decay: float | None = None

    def after(self, round: int, average: Tensors, parameters: Tensors) -> Tensors:
        """Return the average after a round, as new tensors.

        Args:
            round: the completed round, from 0.
            average: average before the round; empty before the first included round.
            parameters: parameters after the round.
        """
        count = round + 1 - self.start
        if count < 1:
            return average
        if not average:
            return {name: value.clone() for name, value in parameters.items()}
        newest = 1.0 / count
        if self.kind == "exponential":
            decay = 0.9 if self.decay is None else self.decay
            newest = (1.0 - decay) / (1.0 - decay**count)
        return {name: value.lerp(parameters[name], newest) for name, value in average.items()}

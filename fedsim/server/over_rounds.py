"""What changes over a run's rounds: the learning rate, and the average of the parameters.

Both are functions of round numbers and of released parameters: post-processing, free in ε.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedsim.tensors import Tensors


@dataclass(frozen=True)
class RateSchedule:
    """Shares of the learning rate: warm-up, then from 1 to `final_share`, which is then held.

    Round t (from 0) of a warm-up of w rounds has the share (t + 1) / (w + 1). After it, at
    x = (t - w) / (rounds - w): 1 if constant; 1 - (1 - f)·x if linear;
    f + (1 - f)·(1 + cos πx) / 2 if cosine; (1 + x·(f⁻² - 1))^(-1/2) if inverse-square-root.

    Attributes:
        kind: what follows the warm-up.
        rounds: of warm-up and decay together, more than `warmup_rounds`.
        warmup_rounds: w.
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
        """Return what the learning rate is multiplied by in a round."""
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
    """The mean of the parameters after each round from `start` on; all weigh alike in a tail.

    In an exponential average the n-th newest weighs decay^n, and weights sum to one: the start of
    the run is not in it.

    Attributes:
        kind: "exponential" or "tail".
        start: how many rounds come before the first that counts.
        decay: of an exponential average, in [0, 1); None: 0.9.
    """

    kind: Literal["exponential", "tail"]
    start: int
    decay: float | None = None

    def after(self, round: int, average: Tensors, parameters: Tensors) -> Tensors:
        """Return the average after a round; the one before it stays as it is.

        Args:
            round: the round that was carried out, from 0.
            average: the one before it; empty before the first that counts.
            parameters: after it.
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

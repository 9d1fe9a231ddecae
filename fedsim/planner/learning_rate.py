"""The planned learning rate and clip: a run's automatic rule, with a measured signal."""

from __future__ import annotations

from dataclasses import dataclass

from fedsim.config import Config
from fedsim.plan import RoundPlan
from fedsim.planner.variants import changed
from fedsim.server.automatic_rate import AutomaticRate
from fedsim.server.over_rounds import RateSchedule
from fedsim.server_optimizer import AutomaticOptimizer

CLIP_SHARE = 0.25
"""Clip norm as a share of the median norm, so that nearly all updates have one norm (Bu et al.
2022)."""


@dataclass(frozen=True)
class PlannedRate:
    """SGD's learning rate, before the schedule.

    Attributes:
        value: the rate.
        signal: ‖mean update‖² divided by the squared clip norm, measured on private text.
        limited_by_noise: whether noise keeps the rate below the largest stable rate.
        schedule: kind of the rate's schedule.
    """

    value: float
    signal: float
    limited_by_noise: bool
    schedule: str = "linear"

    @property
    def sentence(self) -> str:
        """The plan's sentence on the learning rate and the number of rounds."""
        limit = (
            "noise limits it, so more rounds change little"
            if self.limited_by_noise
            else "the curvature at the starting model limits it, not noise, so more rounds help"
        )
        return (
            f"Learning rate {self.value:g} of SGD with a {self.schedule} schedule: {limit}. The "
            f"squared norm of the mean update is {self.signal:.2g} times the squared clip norm."
        )


def planned_rate(
    rate: AutomaticRate, plan: RoundPlan, schedule: RateSchedule, rounds: int, signal: float
) -> PlannedRate:
    """Return the learning rate for a plan and the measured signal of its updates."""
    squared = sum(schedule.share(round) ** 2 for round in range(rounds))
    value = rate.of(rate.growth(signal), plan.noise_stddev, squared)
    limited = value < rate.largest(plan.noise_stddev)
    return PlannedRate(float(f"{value:.2g}"), signal, limited, schedule.kind)


def with_rate(config: Config, plan: RoundPlan, signal: float) -> tuple[Config, PlannedRate | None]:
    """Return the config with the planned rate; unchanged if it gives a rate or adds no noise."""
    if not isinstance(plan.optimizer, AutomaticOptimizer) or plan.optimizer.rate is None:
        return config, None
    schedule = plan.optimizer.rate_schedule
    rate = planned_rate(plan.optimizer.rate, plan, schedule, config.strategy.rounds, signal)
    server: dict[str, object] = {"optimizer": "sgd", "learning_rate": rate.value}
    if config.server.schedule is None:
        server["schedule"] = {"kind": "linear"}
    return changed(config, server=server), rate

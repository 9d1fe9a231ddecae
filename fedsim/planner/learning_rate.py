"""The planned learning rate and clip: the rule of a run's own, with a signal that is measured."""

from __future__ import annotations

from dataclasses import dataclass

from fedsim.config import Config
from fedsim.plan import RoundPlan
from fedsim.planner.variants import changed
from fedsim.server.automatic_rate import AutomaticRate
from fedsim.server.over_rounds import RateSchedule
from fedsim.server_optimizer import AutomaticOptimizer

CLIP_SHARE = 0.25
"""Of the median norm: nearly every update is then scaled to one norm (Bu et al. 2022)."""


@dataclass(frozen=True)
class PlannedRate:
    """SGD's learning rate, before the schedule.

    Attributes:
        value: the rate.
        signal: ‖mean update‖² over the clip norm squared, measured on private text.
        limited_by_noise: whether noise keeps the rate below the largest that is stable.
        schedule: kind of the schedule that the run multiplies the rate by.
    """

    value: float
    signal: float
    limited_by_noise: bool
    schedule: str = "linear"

    @property
    def sentence(self) -> str:
        """What the plan says of rate and rounds."""
        limit = (
            "noise limits it, so that more rounds change little"
            if self.limited_by_noise
            else "the steepness of the starting point limits it and noise does not, so that more "
            "rounds help"
        )
        return (
            f"Learning rate {self.value:g} of SGD with a {self.schedule} schedule: {limit}. The "
            f"squared norm of the mean update is {self.signal:.2g} of the clip norm's."
        )


def planned_rate(
    rate: AutomaticRate, plan: RoundPlan, schedule: RateSchedule, rounds: int, signal: float
) -> PlannedRate:
    """Return the rate of a plan whose updates have a measured signal."""
    squared = sum(schedule.share(round) ** 2 for round in range(rounds))
    found = rate.of(rate.growth(signal), plan.noise_stddev, squared)
    limited = found < rate.largest(plan.noise_stddev)
    return PlannedRate(float(f"{found:.2g}"), signal, limited, schedule.kind)


def with_rate(config: Config, plan: RoundPlan, signal: float) -> tuple[Config, PlannedRate | None]:
    """Return the config with the planned rate; as it is where it names one of its own."""
    if not isinstance(plan.optimizer, AutomaticOptimizer) or plan.optimizer.rate is None:
        return config, None
    schedule = plan.optimizer.rate_schedule
    found = planned_rate(plan.optimizer.rate, plan, schedule, config.strategy.rounds, signal)
    server: dict[str, object] = {"optimizer": "sgd", "learning_rate": found.value}
    if config.server.schedule is None:
        server["schedule"] = {"kind": "linear"}
    return changed(config, server=server), found

"""Compare ULS with ELS for a config and its data: group sizes, cohort and noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.materials import Materials
from fedsim.parts import warn_if_far
from fedsim.planner.budget import check_budget
from fedsim.planner.candidates import (
    Candidate,
    as_clip,
    as_els,
    as_uls,
    candidate,
    check_plannable,
    enough,
    median_user_size,
)
from fedsim.planner.doubling import Doubling, Point, estimate_and_double
from fedsim.planner.gradient_norms import GradientNorms, random_users
from fedsim.planner.learning_rate import CLIP_SHARE, PlannedRate, with_rate
from fedsim.planner.noise import Recommendation, recommend
from fedsim.planner.variants import changed, tried, with_noise
from fedsim.runner.summary import expected_gradients

START_COHORT = 32  # Charles et al. 2024, App. I.1


@dataclass(frozen=True, eq=False)
class StrategyComparison:
    """ULS and ELS at the same ε, δ and compute, before training.

    Attributes:
        config: the given config.
        budget: B, expected gradients per round of both strategies.
        norms: L(G) for each G that was needed.
        doublings: steps of Estimate-and-Double.
        els: ELS at the median user size.
        uls: ULS at the last point of Estimate-and-Double.
        recommendation: the strategy with less noise.
        planned: config of the recommended strategy, with clip and learning rate.
        rate: the planned learning rate; None if the config gives one.
    """

    config: Config
    budget: float
    norms: GradientNorms
    doublings: tuple[Doubling, ...]
    els: Candidate
    uls: Candidate
    recommendation: Recommendation
    planned: Config
    rate: PlannedRate | None


def compare_strategies(
    config: Config, materials: Materials, *, budget: float | None = None
) -> StrategyComparison:
    """Plan both strategies at the same ε, δ and compute, and compare their noise.

    Args:
        config: config of a run; the plan replaces strategy, group size, clip norm and cohort or
            batch size.
        materials: materials of the config.
        budget: B; None: the config's expected gradients per round.

    Raises:
        ConfigError: the config has no ε and δ, the data cannot meet the budget, or a strategy
            refuses a setting.
    """
    check_plannable(config)
    budget = _own_budget(config, materials) if budget is None else budget
    check_budget(budget)
    declared, counted = config.privacy.declared_num_users, materials.split.num_users
    if declared is not None:  # warn here, because `tried` silences the warning of a plan
        warn_if_far(declared, counted, "privacy.declared_num_users", "users")
    smallest = enough(lambda size: as_uls(config, size), materials, budget, 1)
    els_size = median_user_size(materials)
    els_size = enough(lambda size: as_els(config, size), materials, budget, els_size)
    single = changed(as_uls(config, 1), strategy={"cohort_size": 1.0})
    task = tried(with_noise(single, 1.0), materials).task
    norms = GradientNorms(materials, task, random_users(config.seed, counted))

    def noise_multiplier(cohort_size: int) -> float:
        sized = changed(as_uls(config, 1), strategy={"cohort_size": float(cohort_size)})
        return tried(sized, materials).noise_multiplier

    users = declared or counted
    point, doublings = estimate_and_double(
        math.ceil(budget),
        norms,
        noise_multiplier,
        start=Point(smallest, min(START_COHORT, users)),
        largest=Point(int(materials.split.user_sizes.max()), users),
    )
    els = candidate(as_els(config, els_size, norms(1)), materials, budget)
    uls_config = as_uls(config, point.group_size, norms(point.group_size))
    uls = candidate(uls_config, materials, budget)
    recommendation = recommend(els.noise, uls.noise)
    size = 1 if recommendation.strategy == "els" else point.group_size
    chosen = els if recommendation.strategy == "els" else uls
    norm = float(f"{CLIP_SHARE * norms(size):.2g}")
    clipped = changed(chosen.config, strategy={"clip": as_clip(config, norm)})
    planned, rate = with_rate(clipped, tried(clipped, materials), norms.signals.get(size, 0.0))
    return StrategyComparison(
        config, budget, norms, doublings, els, uls, recommendation, planned, rate
    )


def _own_budget(config: Config, materials: Materials) -> float:
    try:
        return expected_gradients(config, materials, tried(with_noise(config, 1.0), materials))
    except ConfigError as error:
        raise ConfigError(f"{error}; or give --budget") from None

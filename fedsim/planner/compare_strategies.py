"""ULS against ELS for a config and its data: group sizes, cohort, noise, and which to take."""

from __future__ import annotations

from dataclasses import dataclass

from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.materials import Materials
from fedsim.planner.budget import check_budget
from fedsim.planner.candidates import (
    Candidate,
    as_els,
    as_uls,
    candidate,
    check_plannable,
    enough,
    median_user_size,
)
from fedsim.planner.doubling import Doubling, Point, estimate_and_double
from fedsim.planner.noise import Recommendation, recommend
from fedsim.planner.norms import Norms, PrivateNorms, coin_users, draws, random_users
from fedsim.planner.user_gradients import UserGradients
from fedsim.planner.variants import changed, tried, with_noise
from fedsim.registry import distribution
from fedsim.runner.summary import expected_gradients
from fedsim.strategy import warn_if_far

START_COHORT = 32  # Charles et al. 2024, App. I.1


@dataclass(frozen=True, eq=False)
class StrategyComparison:
    """ULS and ELS at one promise and one compute, before training.

    Attributes:
        config: as it was given.
        budget: B, expected gradients a round of either strategy.
        norms: L(G) for each G that was asked for, and how.
        doublings: the steps of Estimate-and-Double.
        els: ELS at the median user size.
        uls: ULS where Estimate-and-Double ended.
        signals: by strategy, |E clip(g)| at the starting model in the unit of the gradients; None
            where it was not estimated.
        recommendation: which has less noise.
        seconds_per_gradient: by strategy, measured here, one unit after the other.
    """

    config: Config
    budget: float
    norms: Norms
    doublings: tuple[Doubling, ...]
    els: Candidate
    uls: Candidate
    signals: dict[str, float | None]
    recommendation: Recommendation
    seconds_per_gradient: dict[str, float | None]

    @property
    def candidates(self) -> tuple[Candidate, Candidate]:
        """Both, ULS first."""
        return self.uls, self.els

    @property
    def chosen(self) -> Candidate:
        """The recommended one."""
        return self.els if self.recommendation.strategy == "els" else self.uls


def compare_strategies(
    config: Config,
    materials: Materials,
    *,
    budget: float | None = None,
    private_norms: float | None = None,
) -> StrategyComparison:
    """Plan both strategies at one promise and one compute, and compare their noise.

    Args:
        config: of a run; strategy, group size, clip norm and cohort or batch are what is planned.
        materials: of the config.
        budget: B; None for the config's own expected gradients a round.
        private_norms: ε for the clip norms, taken off the config's; None for plain estimates.

    Raises:
        ConfigError: no ε and δ in the config, a budget that the data cannot meet, an ε that leaves
            nothing for training, private norms with a shared ledger, which would not be charged, or
            what a strategy refuses.
    """
    check_plannable(config)
    if private_norms is not None and config.privacy.shared is not None:
        raise ConfigError(
            "--private-norms with privacy.shared: the answers are releases that the shared ledger "
            "would not know of; plan from public numbers (--users, …), or without that ledger"
        )
    budget = _own_budget(config, materials) if budget is None else budget
    check_budget(budget)
    declared = config.privacy.declared_num_users
    if declared is not None and private_norms is None:  # tried plans say nothing, a run would
        field, counted = "privacy.declared_num_users", materials.split.num_users
        warn_if_far(declared, counted, field, "users", config.strategy.cohort_size)
    smallest = enough(lambda size: as_uls(config, size), materials, budget, 1)
    els_size = median_user_size(materials)
    els_size = enough(lambda size: as_els(config, size), materials, budget, els_size)
    start = Point(smallest, min(START_COHORT, _public_users(config, materials)))
    norms = _norms(config, materials, private_norms, _reachable(start, budget, materials))
    if isinstance(norms, PrivateNorms):
        config = _without(config, norms.epsilon)
    point, doublings = _doubled(config, materials, budget, norms, start)
    els = candidate(as_els(config, els_size, norms(1)), materials, budget)
    uls_norm = norms(point.group_size)
    uls = candidate(as_uls(config, point.group_size, uls_norm), materials, budget)
    plain = private_norms is None
    gradients = norms.gradients
    return StrategyComparison(
        config=config,
        budget=budget,
        norms=norms,
        doublings=doublings,
        els=els,
        uls=uls,
        signals={
            "uls": _signal(gradients, uls, point.group_size) if plain else None,
            "els": _signal(gradients, els, 1) if plain else None,
        },
        recommendation=recommend(els.noise, uls.noise),
        seconds_per_gradient={
            # Of private users' texts, so not beside a promise that covers the norms alone.
            "uls": gradients.seconds_per_gradient(point.group_size) if plain else None,
            "els": gradients.seconds_per_gradient(1) if plain else None,
        },
    )


def _own_budget(config: Config, materials: Materials) -> float:
    try:
        return expected_gradients(config, materials, tried(with_noise(config, 1.0), materials))
    except ConfigError as error:
        raise ConfigError(f"{error}; or give --budget") from None


def _public_users(config: Config, materials: Materials) -> int:
    return config.privacy.declared_num_users or materials.split.num_users


def _reachable(start: Point, budget: float, materials: Materials) -> list[int]:
    """Return every group size that Estimate-and-Double can ask about, and 1."""
    sizes, largest = [start.group_size], int(materials.split.user_sizes.max())
    while sizes[-1] * start.cohort_size < budget and 2 * sizes[-1] <= largest:
        sizes.append(2 * sizes[-1])
    return sorted({1, *sizes})


def _norms(
    config: Config, materials: Materials, private: float | None, group_sizes: list[int]
) -> Norms:
    num_users, public = materials.split.num_users, _public_users(config, materials)
    single = changed(as_uls(config, 1), strategy={"cohort_size": 1.0})
    task = tried(with_noise(single, 1.0), materials)
    if private is None:
        users = random_users(draws(config, materials)(0), num_users)
        return Norms(UserGradients(materials, task.task, users))
    epsilon = config.privacy.epsilon or 0.0
    if not 0.0 < private < epsilon:
        raise ConfigError(
            f"--private-norms = {private}: give an ε above 0, below privacy.epsilon = {epsilon}, "
            "the rest of which is for training"
        )
    told = [task.task.model_dump(mode="json"), distribution("tasks", task.task.name)]
    drawn = draws(config, materials, private, group_sizes, told)
    return PrivateNorms(
        UserGradients(materials, task.task, coin_users(drawn(0), num_users, public)),
        unit=config.data.unit,
        draws=drawn,
        noise=config.privacy.noise,
        relation=task.relation,
        epsilon=private,
        group_sizes=group_sizes,
    )


def _without(config: Config, spent: float) -> Config:
    left = (config.privacy.epsilon or 0.0) - spent
    return changed(config, privacy={"epsilon": left})


def _doubled(
    config: Config, materials: Materials, budget: float, norms: Norms, start: Point
) -> tuple[Point, tuple[Doubling, ...]]:
    """Run Estimate-and-Double with the noise multipliers that the strategy itself calibrates."""

    def noise_multiplier(cohort_size: int) -> float:
        sized = changed(as_uls(config, 1), strategy={"cohort_size": float(cohort_size)})
        return tried(sized, materials).noise_multiplier

    largest = Point(int(materials.split.user_sizes.max()), _public_users(config, materials))
    whole = -(-budget // 1)
    return estimate_and_double(int(whole), norms, noise_multiplier, start=start, largest=largest)


def _signal(gradients: UserGradients, chosen: Candidate, group_size: int) -> float | None:
    """Return |E clip(g)| in the unit of the gradients, also where the clip is normalised."""
    norm = gradients.clipped_mean_norm(group_size, chosen.plan.clip)
    return None if norm is None else norm * chosen.noise.l2_clip_norm / chosen.plan.clip.bound

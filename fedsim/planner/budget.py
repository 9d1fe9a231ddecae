"""Set the cohort or batch size of a config so that a round has B expected gradients."""

from __future__ import annotations

import math

from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.materials import Materials
from fedsim.plan import RoundPlan
from fedsim.planner.variants import changed, tried, with_noise
from fedsim.runner.summary import expected_gradients

_KEYS = ("cohort_size", "batch_size")


def at_budget(config: Config, materials: Materials, budget: float) -> Config:
    """Return the config with the size for `budget` expected gradients per round.

    Sets `cohort_size` (users) or `batch_size` (examples), whichever the strategy takes, and removes
    the other. `fedsim.runner.summary.expected_gradients` defines the expectation: a user with fewer
    than `group_size` examples counts with all of them. Calibrates no noise.

    Args:
        config: config of any strategy; the size may be missing.
        materials: materials of the config.
        budget: B > 0, expected per-example gradients per round (Charles et al. 2024, §2).

    Returns:
        The config. Fixed-size and shuffled samplers get the nearest whole number, at least 1;
        balanced samplers the nearest number of passes; BLT the nearest number of groups.

    Raises:
        ConfigError: the budget is out of range, or the strategy refuses the config.
    """
    check_budget(budget)
    key, probe = _probe(config, materials)
    largest = largest_budget(config, materials, probe)
    if budget > largest:
        raise ConfigError(
            f"--budget = {budget:g}: all {len(probe.pool)} {probe.unit}s together give "
            f"{largest:g} gradients with strategy.group_size = {config.strategy.group_size}; "
            "give at most that, or a larger group_size"
        )
    population = round(1.0 / probe.sampling.probability)  # public size: the probe draws one unit
    size = budget / largest * population
    if config.strategy.sampling.kind == "balanced":
        participations = passes(config.strategy.rounds, size / population)
        whole = {"sampling": {"kind": "balanced", "participations": participations}}
        return changed(config, strategy={**dict.fromkeys(_KEYS), **whole})
    if config.privacy.mechanism == "blt":
        groups = min(max(1, round(population / size)), config.strategy.rounds)
        whole = {"sampling": {"kind": "cyclic", "groups": groups}}
        return changed(config, strategy={**dict.fromkeys(_KEYS), **whole})
    if config.strategy.sampling.kind in ("fixed-size", "shuffled"):
        size = float(max(1, round(size)))
    planned = _with_size(config, key, size)
    if config.strategy.sampling.kind == "truncated-poisson":
        cut = tried(with_noise(planned, 1.0), materials)
        if (met := expected_gradients(planned, materials, cut)) < 0.99 * budget:
            raise ConfigError(
                f"--budget = {budget:g}: strategy.sampling.max_cohort_size limits a round to "
                f"{met:.4g} gradients on average; raise it, or give a smaller budget"
            )
    return planned


def check_budget(budget: float) -> None:
    """Raise `ConfigError` unless the budget is a finite number above 0."""
    if not 0.0 < budget < math.inf:
        raise ConfigError(f"--budget = {budget!r}: give a finite number of gradients > 0")


def largest_budget(config: Config, materials: Materials, probe: RoundPlan | None = None) -> float:
    """Return the number of gradients of a round in which all units take part."""
    if probe is None:
        _, probe = _probe(config, materials)
    return expected_gradients(config, materials, probe) / probe.sampling.probability


def _probe(config: Config, materials: Materials) -> tuple[str, RoundPlan]:
    """Return the size key that the strategy takes, and its plan for one unit per round."""
    present = [key for key in _KEYS if getattr(config.strategy, key, None) is not None]
    cheap = with_noise(config, 1.0)
    # These samplers cannot draw one unit per round.
    if config.strategy.sampling.kind in ("balanced", "cyclic", "truncated-poisson"):
        independent = {"mechanism": "independent", "bands": None, "buffers": None}
        poisson = {"sampling": {"kind": "poisson"}}
        cheap = changed(cheap, strategy=poisson, privacy=independent)
    errors = []
    for key in dict.fromkeys((*present, *_KEYS)):
        try:
            return key, tried(_with_size(cheap, key, 1.0), materials)
        except ConfigError as error:
            errors.append(error)
    # One error only says that the strategy does not take that size; raise the other error.
    sizes = tuple(f"strategy.{key}" for key in _KEYS)
    raise next((error for error in errors if not str(error).startswith(sizes)), errors[0])


def passes(rounds: int, share: float) -> int:
    """Return the number of passes nearest to `share` of the rounds, at least 1."""
    return max(1, round(rounds * share))


def _with_size(config: Config, key: str, size: float) -> Config:
    return changed(config, strategy={**dict.fromkeys(_KEYS), key: size})

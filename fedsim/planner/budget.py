"""A config at a given compute: the cohort or batch whose expected gradients a round are B."""

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
    """Return the config with the size at which a round takes `budget` gradients on average.

    `cohort_size` (users) or `batch_size` (examples) is set, whichever the strategy takes, and the
    other is removed. Expectations are those of `fedsim.runner.summary.expected_gradients`: a user
    with fewer than `group_size` examples counts with these. No noise is calibrated.

    Args:
        config: of any strategy; the size may be missing.
        materials: of the config.
        budget: B > 0, expected per-example gradients a round (Charles et al. 2024, §2).

    Returns:
        The config. Fixed-size and shuffled samplers get the nearest whole number, at least 1,
        balanced ones the nearest number of passes, and BLT the nearest number of groups.

    Raises:
        ConfigError: a budget out of range, or what the strategy refuses.
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
    population = round(1.0 / probe.sampling.probability)  # the public size, of a probe of one
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
                f"--budget = {budget:g}: strategy.sampling.max_cohort_size keeps a round to "
                f"{met:.4g} gradients on average; raise it, or give a smaller budget"
            )
    return planned


def check_budget(budget: float) -> None:
    """Raise `ConfigError` unless it is a finite number above 0."""
    if not 0.0 < budget < math.inf:
        raise ConfigError(f"--budget = {budget!r}: give a finite number of gradients > 0")


def largest_budget(config: Config, materials: Materials, probe: RoundPlan | None = None) -> float:
    """Return the gradients of a round in which every unit takes part."""
    if probe is None:
        _, probe = _probe(config, materials)
    return expected_gradients(config, materials, probe) / probe.sampling.probability


def _probe(config: Config, materials: Materials) -> tuple[str, RoundPlan]:
    """Return the key that the strategy takes, and its plan for one unit a round."""
    given = [key for key in _KEYS if getattr(config.strategy, key, None) is not None]
    cheap = with_noise(config, 1.0)
    # Of passes, or whole groups, or cut.
    if config.strategy.sampling.kind in ("balanced", "cyclic", "truncated-poisson"):
        independent = {"mechanism": "independent", "bands": None, "buffers": None}
        poisson = {"sampling": {"kind": "poisson"}}
        cheap = changed(cheap, strategy=poisson, privacy=independent)
    errors = []
    for key in dict.fromkeys((*given, *_KEYS)):
        try:
            return key, tried(_with_size(cheap, key, 1.0), materials)
        except ConfigError as error:
            errors.append(error)
    # That the strategy does not take a size is no complaint about the config: the other is.
    ours = tuple(f"strategy.{key}" for key in _KEYS)
    raise next((error for error in errors if not str(error).startswith(ours)), errors[0])


def passes(rounds: int, share: float) -> int:
    """Return the number of passes that comes nearest to that share of the rounds, at least 1."""
    return max(1, round(rounds * share))


def _with_size(config: Config, key: str, size: float) -> Config:
    return changed(config, strategy={**dict.fromkeys(_KEYS), key: size})

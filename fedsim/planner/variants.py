"""Change keys of a config, and build plans without log lines."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fedsim.config import Config, parse_config
from fedsim.materials import Materials
from fedsim.plan import RoundPlan
from fedsim.strategy import build_plan


def changed(config: Config, **sections: Mapping[str, Any]) -> Config:
    """Return the config with keys of its sections replaced, validated; None removes a key.

    Raises:
        ConfigError: the keys are invalid together.
    """
    raw = config.model_dump(exclude_none=True)
    for name, keys in sections.items():
        merged = {**raw[name], **keys}
        raw[name] = {key: value for key, value in merged.items() if value is not None}
    return parse_config(raw)


def with_noise(config: Config, noise_multiplier: float) -> Config:
    """Return the config with a noise multiplier instead of ε, which skips calibration."""
    return changed(config, privacy={"epsilon": None, "noise_multiplier": noise_multiplier})


def tried(config: Config, materials: Materials) -> RoundPlan:
    """Return the strategy's plan without logging warnings.

    Raises:
        ConfigError: the strategy refuses the config.
    """
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        return build_plan(config, materials)
    finally:
        logging.disable(before)

"""Build a changed config, and its plan without logging."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedsim.config import Config, parse_config
from fedsim.materials import Materials
from fedsim.plan import RoundPlan
from fedsim.strategy import build_plan


def changed(config: Config, **sections: Mapping[str, Any]) -> Config:
    """Return the config with keys of its sections replaced, validated; None takes a key out.

    Raises:
        ConfigError: the keys do not go together.
    """
    raw = config.model_dump(exclude_none=True)
    for name, keys in sections.items():
        merged = {**raw[name], **keys}
        raw[name] = {key: value for key, value in merged.items() if value is not None}
    return parse_config(raw)


def with_noise(config: Config, noise_multiplier: float) -> Config:
    """Return the config with a noise multiplier in the place of its ε: no accountant is asked."""
    return changed(config, privacy={"epsilon": None, "noise_multiplier": noise_multiplier})


def tried(config: Config, materials: Materials) -> RoundPlan:
    """Return the strategy's plan without the warnings that a run will give when it makes its own.

    Raises:
        ConfigError: whatever the strategy finds wrong.
    """
    with _silence():
        return build_plan(config, materials)


@contextmanager
def _silence() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)

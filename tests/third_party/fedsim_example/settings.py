"""What both strategies refuse: keys of `[strategy]` that they would ignore."""

from __future__ import annotations

from collections.abc import Collection

from fedsim import Config, ConfigError


def refuse_unused(config: Config, used: Collection[str]) -> None:
    """Raise `ConfigError` for a key that was set and is not used."""
    given = config.strategy.model_dump(exclude={*used})
    usual = type(config.strategy)().model_dump(exclude={*used})
    for key, value in given.items():
        if value != usual[key]:
            name = config.strategy.name
            raise ConfigError(f"strategy.{key} = {value!r}: {name!r} does not use it")

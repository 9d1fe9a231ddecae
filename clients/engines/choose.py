"""Which engine computes: by name, or the one that fits best."""

from __future__ import annotations

from clients.engines.loop import loop
from fedsim.errors import ConfigError
from fedsim.execution import Engine

_ENGINES: dict[str, Engine] = {"loop": loop}


def choose_engine(name: str) -> Engine:
    """Return the engine of that name; "auto" is the fastest that is right for every model."""
    if name == "auto":
        return loop
    if name not in _ENGINES:
        raise ConfigError(f"executor.engine = {name!r}: known: auto, {', '.join(_ENGINES)}")
    return _ENGINES[name]

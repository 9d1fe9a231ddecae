"""Plug-ins: resolve a name to an implementation through entry points."""

from __future__ import annotations

import difflib
from importlib.metadata import entry_points
from typing import Any

from fedsim.errors import ConfigError


def names(group: str) -> list[str]:
    """Return the names registered under `fedsim.<group>`, sorted."""
    return sorted({entry.name for entry in entry_points(group=f"fedsim.{group}")})


def distribution(group: str, name: str) -> str:
    """Return the name and version of the package that registered `name`; "" for no such name."""
    entries = [entry for entry in entry_points(group=f"fedsim.{group}") if entry.name == name]
    dist = entries[0].dist if entries else None
    return "" if dist is None else f"{dist.name} {dist.version}"


def resolve(group: str, name: str, field: str) -> Any:  # noqa: ANN401  (each group has its own protocol)
    """Load what `name` stands for in `group`.

    Args:
        group: "strategies", "tasks", "client_apps", "models", "analyses", "demos", "studies",
            "benchmarks" or "trackers".
        name: the registered name.
        field: the config key or option that named it, for the message.

    Raises:
        ConfigError: nothing is registered under that name.
    """
    entries = [entry for entry in entry_points(group=f"fedsim.{group}") if entry.name == name]
    if entries:
        return entries[0].load()
    known = names(group)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(f"{field} = {name!r}: {hint}known: {', '.join(known)}")

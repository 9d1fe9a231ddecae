"""Resolve names to implementations (built in or plug-in) through entry points."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import Any

from fedsim.errors import ConfigError, nearest

_OWN = "fedsim-dp"


def names(group: str) -> list[str]:
    """Return the names registered under `fedsim.<group>`, sorted."""
    return sorted(_registered(group).names)


def distribution(group: str, name: str) -> str:
    """Return the name and version of the package that registered `name`; "" if it is unknown.

    Raises:
        ConfigError: several packages registered the name.
    """
    entry = _entry(group, name)
    if entry is None or entry.dist is None:
        return ""
    return f"{entry.dist.name} {entry.dist.version}"


def distributions(named: Mapping[str, str]) -> dict[str, str]:
    """Return the `distribution` of one name per group; raises as `distribution` does."""
    return {group: distribution(group, name) for group, name in named.items()}


def is_own(package: str) -> bool:
    """Return whether `package`, as from `distribution`, is fedsim itself."""
    return package.startswith(f"{_OWN} ")


def resolve(group: str, name: str, field: str) -> Any:  # noqa: ANN401  (each group has its own protocol)
    """Load the implementation that is registered as `name`.

    Args:
        group: such as "strategies", "tasks" or "models"; pyproject.toml lists all groups and the
            built-in names.
        name: the registered name.
        field: config key or option that holds the name, for messages.

    Raises:
        ConfigError: the name is unknown, several packages registered it, or a plug-in cannot be
            imported.
    """
    if (entry := _entry(group, name)) is not None:
        try:
            return entry.load()
        except (ImportError, AttributeError) as error:
            package = distribution(group, name)
            if is_own(package):
                raise
            raise ConfigError(
                f"{field} = {name!r}: {entry.value!r} of plug-in {package.split()[0]!r} cannot be "
                f"imported: {error}"
            ) from error
    known = names(group)
    hint = f"{nearest(name, known, 0.6)} known: {', '.join(known)}".strip()
    raise ConfigError(f"{field} = {name!r}: {hint}")


def _entry(group: str, name: str) -> EntryPoint | None:
    entries = list(_registered(group).select(name=name))
    packages = sorted({entry.dist.name for entry in entries if entry.dist is not None})
    if len(packages) > 1:
        raise ConfigError(
            f"fedsim.{group}: {name!r} is registered by {' and '.join(packages)}; uninstall all "
            "but one"
        )
    return entries[0] if entries else None


def part(group: str, name: str, field: str) -> Any:  # noqa: ANN401
    """Load a part that a config names: an object with `build` and optionally `options`.

    Raises:
        ConfigError: as `resolve`, or the part has no `build`.
    """
    loaded = resolve(group, name, field)
    if not callable(getattr(loaded, "build", None)):
        raise ConfigError(
            f"{field} = {name!r}: the part that {distribution(group, name).split()[0]!r} registers "
            "has no `build`; see docs/how-to/own-parts.md"
        )
    return loaded


def _registered(group: str) -> EntryPoints:
    return _read(f"fedsim.{group}", *map(_state, sys.path))


@lru_cache(maxsize=64)
def _read(group: str, *path: tuple[str, int]) -> EntryPoints:
    """Read the entry points of a group (30 ms with a few hundred packages, hence the cache)."""
    return entry_points(group=group)


def _state(folder: str) -> tuple[str, int]:
    """Return an import folder and its modification time, which an install or removal changes."""
    try:
        return folder, Path(folder).stat().st_mtime_ns
    except OSError:
        return folder, 0

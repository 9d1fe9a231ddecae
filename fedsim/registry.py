"""Plug-ins: resolve a name to an implementation through entry points."""

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
    """Return the name and version of the package that registered `name`; "" for no such name.

    Raises:
        ConfigError: several packages registered the name.
    """
    entry = _entry(group, name)
    if entry is None or entry.dist is None:
        return ""
    return f"{entry.dist.name} {entry.dist.version}"


def distributions(named: Mapping[str, str]) -> dict[str, str]:
    """Return the `distribution` behind a name of each group; errors as there."""
    return {group: distribution(group, name) for group, name in named.items()}


def is_own(package: str) -> bool:
    """Return whether a `distribution` is fedsim's own."""
    return package.startswith(f"{_OWN} ")


def resolve(group: str, name: str, field: str) -> Any:  # noqa: ANN401  (each group has its own protocol)
    """Load the implementation that is registered as `name`.

    Args:
        group: such as "strategies", "tasks" or "models"; pyproject.toml has all, each with the
            names of fedsim's own.
        name: the registered name.
        field: the config key or option that named it, for the message.

    Raises:
        ConfigError: nothing is registered under that name, or several packages did, or a plug-in
            cannot be imported.
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
    """Load a part that a config names: it has `build`, and maybe `options`.

    Raises:
        ConfigError: as `resolve`, or it has no `build`.
    """
    found = resolve(group, name, field)
    if not callable(getattr(found, "build", None)):
        raise ConfigError(
            f"{field} = {name!r}: what {distribution(group, name).split()[0]!r} registers has no "
            "`build`; see docs/how-to/own-parts.md"
        )
    return found


def _registered(group: str) -> EntryPoints:
    return _read(f"fedsim.{group}", *map(_state, sys.path))


@lru_cache(maxsize=64)
def _read(group: str, *path: tuple[str, int]) -> EntryPoints:
    """Read a group of all packages on the path: 30 ms with a few hundred packages."""
    return entry_points(group=group)


def _state(folder: str) -> tuple[str, int]:
    """Return a place of imports, and when a package was last installed or removed there."""
    try:
        return folder, Path(folder).stat().st_mtime_ns
    except OSError:
        return folder, 0

"""Plug-ins: resolve a name to an implementation through entry points."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, EntryPoints, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedsim.errors import ConfigError, nearest

_OWN = "fedsim-dp"


def names(group: str) -> list[str]:
    """Return the names registered under `fedsim.<group>`, sorted."""
    return sorted(_registered(group).names)


def distribution(group: str, name: str) -> str:
    """Return the name and version of the package that registered `name`; "" for no such name.

    A package other than fedsim's is edited without a new version: the entry point follows, and a
    SHA-256 (hex) of all files of its top-level modules but bytecode, with their places in them: of
    that of the entry point, and of all that the package says it brings.

    Raises:
        ConfigError: those files changed since this process saw them first, or are gone (what it
            imported then, it goes on computing with); or several packages registered the name.
    """
    entry = _entry(group, name)
    if entry is None or entry.dist is None:
        return ""
    package, version = _named(entry.dist)
    named = f"{package} {version}"
    if package == _OWN:
        return named
    return f"{named} {entry.value} {_same_source(_modules(entry.dist, entry.module), package)}"


def is_own(package: str) -> bool:
    """Return whether a `distribution` is fedsim's own."""
    return package.startswith(f"{_OWN} ")


def _entry(group: str, name: str) -> EntryPoint | None:
    """Return what is registered under a name: a second package that does would run unseen."""
    entries = list(_registered(group).select(name=name))
    packages = sorted({_named(entry.dist)[0] for entry in entries if entry.dist is not None})
    if len(packages) > 1:
        raise ConfigError(
            f"fedsim.{group}: {name!r} is registered by {' and '.join(packages)}; uninstall all "
            "but one"
        )
    return entries[0] if entries else None


@lru_cache
def _named(dist: Distribution) -> tuple[str, str]:
    """Return the name and version of a package; each is read from a file that is parsed anew."""
    return dist.name, dist.version


def distributions(named: Mapping[str, str]) -> dict[str, str]:
    """Return the `distribution` behind a name of each group; errors as there."""
    return {group: distribution(group, name) for group, name in named.items()}


@lru_cache
def _modules(dist: Distribution, module: str) -> tuple[str, ...]:
    """Return the top-level modules of a package: that of `module`, and all that it lists."""
    listed = {path.parts[0].partition(".")[0] for path in dist.files or () if path.suffix == ".py"}
    listed |= set((dist.read_text("top_level.txt") or "").split())
    first = module.partition(".")[0]
    return (first, *sorted(name for name in listed - {first} if name.isidentifier()))


_FIRST_SEEN: dict[tuple[str, str | None], str] = {}


def _same_source(modules: tuple[str, ...], package: str) -> str:
    """Return the digest of a plug-in's files, the same in all of this process."""
    spec = find_spec(modules[0])
    try:
        digest = " ".join(map(_source_digest, modules))
    except FileNotFoundError as error:
        raise ConfigError(
            f"plug-in {package!r}: {error.filename} is gone since this process imported it; "
            "install it again and restart Python"
        ) from error
    if _FIRST_SEEN.setdefault((modules[0], spec.origin if spec else None), digest) != digest:
        raise ConfigError(
            f"plug-in {package!r}: its files changed since this process imported them; restart "
            "Python, so that what runs is what they say"
        )
    return digest


def _source_digest(module: str) -> str:
    spec = find_spec(module)
    digest = hashlib.sha256()
    places = list(spec.submodule_search_locations or ()) if spec else []
    files = {
        str(path.relative_to(place)): path
        for place in places
        for path in sorted(Path(place).rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }
    if spec is not None and spec.origin is not None and not places:
        files = {Path(spec.origin).name: Path(spec.origin)}
    for name, path in files.items():
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def resolve(group: str, name: str, field: str) -> Any:  # noqa: ANN401  (each group has its own protocol)
    """Load what `name` stands for in `group`.

    Args:
        group: such as "strategies", "tasks" or "models"; pyproject.toml has all, each with the
            names of fedsim's own.
        name: the registered name.
        field: the config key or option that named it, for the message.

    Raises:
        ConfigError: nothing is registered under that name, or a plug-in that cannot be imported;
            or as of `distribution`.
    """
    if (entry := _entry(group, name)) is not None:
        package = distribution(group, name)  # remembers a plug-in's files as it is imported
        try:
            return entry.load()
        except (ImportError, AttributeError) as error:
            if is_own(package):
                raise
            raise ConfigError(
                f"{field} = {name!r}: {entry.value!r} of plug-in {package.split()[0]!r} cannot be "
                f"imported: {error}"
            ) from error
    known = names(group)
    hint = f"{nearest(name, known, 0.6)} known: {', '.join(known)}".strip()
    raise ConfigError(f"{field} = {name!r}: {hint}")


def _registered(group: str) -> EntryPoints:
    return _read(f"fedsim.{group}", *map(_state, sys.path))


@lru_cache(maxsize=64)
def _read(group: str, *path: tuple[str, int]) -> EntryPoints:
    """Read a group of all packages on the path: 30 ms where there are a few hundred."""
    return entry_points(group=group)


def _state(folder: str) -> tuple[str, int]:
    """Return a place of imports, and when a package was last put there or taken away."""
    try:
        return folder, Path(folder).stat().st_mtime_ns
    except OSError:
        return folder, 0

"""A grid of configs: each config with each combination of varied values, under its own name."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

from fedsim.config import Config, load_config
from fedsim.errors import ConfigError, about

_UNSAFE = re.compile(r"[^\w.,+=@() -]+")  # characters that some file system refuses in a name
_QUOTING = re.compile(r"[\s\"'\[\]{}]")  # TOML's quotes and brackets, left out of names
_LONGEST = 160  # maximum bytes of a name: file systems take 255, and files add suffixes


@dataclass(frozen=True)
class Variation:
    """A key and its values in the grid.

    Attributes:
        key: a dotted path such as "privacy.epsilon".
        values: values as typed; `load_config` reads them like `--set`.
    """

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """One config of the grid.

    Attributes:
        name: name of its run.
        config: config with the cell's settings.
        source: stem of the config file.
        settings: label and value, as typed, of each varied key.
        keys: dotted keys that the grid sets.
    """

    name: str
    config: Config
    source: str
    settings: tuple[tuple[str, str], ...] = ()
    keys: tuple[str, ...] = ()


def parse_variation(text: str, option: str = "--vary") -> Variation:
    """Read `key.path=v1,v2,…`, each value TOML or a bare word.

    Raises:
        ConfigError: the key is missing, or a value is missing or empty.

    Examples:
        >>> parse_variation("strategy.group_size=4,16")
        Variation(key='strategy.group_size', values=('4', '16'))
    """
    key, separator, listed = (part.strip() for part in text.partition("="))
    if not separator or not all(part.strip() for part in key.split(".")):
        raise ConfigError(
            f"{option} {text!r}: expected key.path=value,value, such as privacy.epsilon=2,8"
        )
    values = _split(listed)
    if not all(values):
        raise ConfigError(f'{option} {text!r}: a value is missing; an empty string is ""')
    return Variation(".".join(part.strip() for part in key.split(".")), tuple(values))


def expand(
    path: Path,
    variations: Sequence[Variation] = (),
    overrides: Sequence[str] = (),
    *,
    noise: Literal["secure", "seeded"] = "seeded",
) -> list[Cell]:
    """Return one cell per combination of values; the last key varies fastest.

    If a strategy does not read a key, one cell without the key stands for all of its values.

    Args:
        path: a TOML file.
        variations: variations of different keys; without any there is one cell, named after the
            file.
        overrides: `key.path=value`, for all cells.
        noise: default of `privacy.noise`.

    Raises:
        ConfigError: a key is set or varied twice, or a cell's config is invalid.
    """
    _check_keys(variations, overrides)
    labels = labels_of(variations)
    keys = [variation.key for variation in variations]
    cells: list[Cell] = []
    for values in product(*(variation.values for variation in variations)):
        settings = list(zip(labels, keys, values, strict=True))
        cell = _cell(path, settings, overrides, noise)
        if unread := unread_keys(cell, keys):
            read = [setting for setting in settings if setting[1] not in unread]
            cell = _cell(path, read, overrides, noise)
            if cell in cells:
                continue
        cells.append(cell)
    return cells


def unread_keys(cell: Cell, keys: Sequence[str]) -> list[str]:
    """Return the keys that the cell's strategy does not read."""
    unread = cell.config.strategy.unread
    return [key for key in keys if any(f"{key}.".startswith(f"{one}.") for one in unread)]


def _cell(
    path: Path,
    settings: Sequence[tuple[str, str, str]],
    overrides: Sequence[str],
    noise: Literal["secure", "seeded"],
) -> Cell:
    """Return the cell for settings of the form (label, key, value)."""
    labelled = tuple((label, value) for label, _, value in settings)
    name = run_name(path, labelled)
    assigned = [f"{key}={value}" for _, key, value in settings]
    with about(f"{name}: ", (ConfigError,)):
        config = load_config(path, [*overrides, *assigned], noise=noise)
    return Cell(name, config, path.stem, labelled, tuple(key for _, key, _ in settings))


def run_name(path: Path, settings: Sequence[tuple[str, str]]) -> str:
    """Return a folder name such as `uls,group_size=4,epsilon=8`.

    It has only letters, digits and a few signs, without a path separator or a leading dot.
    Different settings can have equal names: callers must check.

    Raises:
        ConfigError: the file's name has no allowed characters.
    """
    stem = _UNSAFE.sub("_", path.stem).lstrip(".")
    if not stem:
        raise ConfigError(f"compare: {path}: this file name gives no name for runs; rename it")
    readable = [f"{label}={_UNSAFE.sub('_', _QUOTING.sub('', text))}" for label, text in settings]
    name = ",".join([stem, *readable])
    encoded = name.encode()
    if len(encoded) <= _LONGEST:
        return name
    kept = encoded[: _LONGEST - 9].decode(errors="ignore")
    return f"{kept}~{hashlib.sha256(repr((path.stem, settings)).encode()).hexdigest()[:8]}"


def _split(listed: str) -> list[str]:
    """Split at commas outside of TOML values; each value is the shortest valid TOML."""
    pieces, values = listed.split(","), []
    while pieces:
        ends = (n for n in range(1, len(pieces) + 1) if _is_toml(",".join(pieces[:n])))
        taken = next(ends, 1)  # a bare word, which ends at the next comma
        values.append(",".join(pieces[:taken]).strip())
        pieces = pieces[taken:]
    return values


def _is_toml(text: str) -> bool:
    try:
        return set(tomllib.loads(f"value = {text}")) == {"value"}
    except (ValueError, RecursionError):  # invalid or too deeply nested
        return False


def _check_keys(variations: Sequence[Variation], overrides: Sequence[str]) -> None:
    taken = [override.partition("=")[0].strip() for override in overrides]
    for variation in variations:
        for other in taken:
            if other == variation.key or other.startswith(f"{variation.key}."):
                raise ConfigError(
                    f"--vary {variation.key}: would override {other}, given before; give each key "
                    "once, with all its values"
                )
        taken.append(variation.key)


def labels_of(variations: Sequence[Variation]) -> list[str]:
    """Return the last part of each key, or the whole key if two last parts are equal."""
    keys = [variation.key for variation in variations]
    last = [key.rpartition(".")[2] for key in keys]
    return [end if last.count(end) == 1 else key for key, end in zip(keys, last, strict=True)]

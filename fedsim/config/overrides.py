"""`--set key.path=value`: one value laid over a config before it is validated."""

from __future__ import annotations

import tomllib
from typing import Any

from fedsim.errors import ConfigError


def apply_override(raw: dict[str, Any], override: str) -> None:
    """Lay `key.path=value` over a nested mapping; the value is TOML or a bare word.

    Raises:
        ConfigError: no key, no "=", a path through something that is no section, or not UTF-8.

    Examples:
        >>> raw = {"server": {"learning_rate": 0.1}}
        >>> apply_override(raw, "server.learning_rate=0.4")
        >>> apply_override(raw, "strategy.name=els")
        >>> raw
        {'server': {'learning_rate': 0.4}, 'strategy': {'name': 'els'}}
    """
    try:
        override.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"--set {override!r}: not UTF-8") from None
    key, separator, text = override.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not separator or not all(path):
        raise ConfigError(
            f"--set {override!r}: expected key.path=value, such as server.learning_rate=0.1"
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text.strip()  # a bare word is a string, so that shells need no nested quotes
    node = raw
    for part in path[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise ConfigError(f"--set {override!r}: {part!r} is a value, not a section")
    node[path[-1]] = value

"""Short labels of the arms of a comparison, made only of differing settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Arm = tuple[str, Mapping[str, str]]
"""A config's stem, and the settings that vary: label of the key to value, as typed."""

EPSILON = ("epsilon", "privacy.epsilon")
BUDGET = ("budget",)
_NAMES = ("", "name", "strategy.name")  # values that need no key beside them


def label_parts(arms: Sequence[Arm]) -> list[tuple[str, ...]]:
    """Return the parts of each arm's label, such as ("uls", "ε = 2").

    A part is a config name or a setting that differs between arms. If all are equal, the only part
    is the config's name. Different arms have different parts.

    Examples:
        >>> label_parts([("base", {"name": "uls", "epsilon": "2", "budget": "64"}),
        ...              ("base", {"name": "non-private", "budget": "64"})])
        [('uls', 'ε = 2'), ('non-private',)]
    """
    settings = [{"": source, **varied} for source, varied in arms]
    keys = dict.fromkeys(key for one in settings for key in one)
    differing = [key for key in keys if len({one.get(key) for one in settings}) > 1]
    return [
        tuple(_part(key, one[key]) for key in differing if key in one) or (one[""],)
        for one in settings
    ]


def common_part(arms: Sequence[Arm]) -> str:
    """Return the config and settings that all arms share, such as "base, budget = 64"."""
    settings = [{"": source, **varied} for source, varied in arms]
    shared = [
        entry for entry in settings[0].items() if all(entry in one.items() for one in settings)
    ]
    return ", ".join(_part(*entry) for entry in shared)


def _part(key: str, value: str) -> str:
    if key in _NAMES:
        return value
    return f"{'ε' if key in EPSILON else key} = {value}"

"""Which parameters move: all of them, or those whose names a pattern finds."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedsim.errors import ConfigError


def select_trainable(names: Sequence[str], pattern: str, *, lora: bool = False) -> list[str]:
    """Return the names to train, in the order given.

    Args:
        names: every parameter's name; a tied parameter is listed once.
        pattern: "all", or a regular expression searched anywhere in a name.
        lora: whether adapters were added; "all" then means all of the adapters and nothing else,
            since the point of an adapter is that the rest stays still.

    Raises:
        ConfigError: not a regular expression, or it finds no name.

    Examples:
        >>> names = ["wte.weight", "h.0.ln_1.weight", "h.0.attn.weight"]
        >>> select_trainable(names, "wte|ln_")
        ['wte.weight', 'h.0.ln_1.weight']
    """
    if pattern == "all":
        return [name for name in names if not lora or ".lora_" in name]
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"model.trainable = {pattern!r}: not a regular expression ({error}); "
            'give "all" or a pattern of parameter names'
        ) from None
    found = [name for name in names if expression.search(name)]
    if not found:
        raise ConfigError(
            f"model.trainable = {pattern!r}: finds none of the {len(names)} parameters; "
            f"their names are {_some(names)}"
        )
    return found


def _some(names: Sequence[str]) -> str:
    """Return at most eight names, spread from the first layer to the last."""
    step = -(-len(names) // 8)
    shown = list(names[::step])
    return ", ".join(shown) + (", ..." if len(shown) < len(names) else "")

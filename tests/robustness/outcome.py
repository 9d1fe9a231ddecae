"""What a part of the torture tried and what it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """A part of the torture, done.

    Attributes:
        name: of the part, such as "kills".
        counts: what was tried, by what it is called: {"kills": 100, "resumed": 100}.
        losses: a line for everything that was lost, leaked or wrong; empty if all is well.
    """

    name: str
    counts: Mapping[str, int]
    losses: tuple[str, ...] = ()


Part = Callable[[Path, float, int], Outcome]
"""(an empty folder to work in, seconds that it may take, a seed) to what came out."""

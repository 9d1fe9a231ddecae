"""A reader under attack: how a hostile input for it is made, and what reading it means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedsim.errors import ConfigError
from tests.robustness.fuzzing.mutations import Dice


class BelievedError(AssertionError):
    """A damaged input was taken for good, or something outside of its folder was touched."""


@dataclass(frozen=True)
class Target:
    """A reader.

    Attributes:
        name: of the reader.
        write: (valid inputs, an empty folder, dice): leaves a hostile input in the folder.
        read: reads what `write` left in a folder, and raises `BelievedError` where what came out
            makes no sense; any error but `refusals` is a loss too.
        refusals: the errors that the reader is documented to raise for a wrong input.
        prepare: makes what `write` begins with, once; does nothing where it is there.
    """

    name: str
    write: Callable[[Path, Path, Dice], None]
    read: Callable[[Path], None]
    refusals: tuple[type[Exception], ...] = (ConfigError,)
    prepare: Callable[[Path], None] = lambda valid: None


def believe(sane: bool, what: str) -> None:
    """Raise `BelievedError` unless what was accepted is sane."""
    if not sane:
        raise BelievedError(what)

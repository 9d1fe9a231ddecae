"""Readers that are broken on purpose: what the fuzzer has to see."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path

from fedsim.errors import ConfigError
from tests.robustness.fuzzing.mutations import Dice
from tests.robustness.fuzzing.target import Target, believe


def _write(valid: Path, place: Path, dice: Dice) -> None:
    (place / "x").write_bytes(pickle.dumps(print))


def _raises(place: Path) -> None:
    told: dict[str, int] = {}
    told["round"] += 1


def _hangs(place: Path) -> None:
    while True:
        pass


def _sleeps(place: Path) -> None:
    signal.pause()


def _allocates(place: Path) -> None:
    bytearray(1 << 31)


def _crashes(place: Path) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _leaves(place: Path) -> None:
    raise SystemExit(0)


def _writes_outside(place: Path) -> None:
    (place.parent / "left-behind").write_text("x", encoding="utf-8")


def _swallows(place: Path) -> None:
    try:
        (place / "../outside/secret.json").read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError("not readable") from error


def _unpickles(place: Path) -> None:
    pickle.loads((place / "x").read_bytes())  # noqa: S301


def _believes(place: Path) -> None:
    believe(False, "nonsense")


def _says_nothing(place: Path) -> None:
    raise ConfigError("")


_READS = (
    _raises,
    _hangs,
    _sleeps,
    _allocates,
    _crashes,
    _leaves,
    _writes_outside,
    _swallows,
    _unpickles,
    _believes,
    _says_nothing,
)
TARGETS = tuple(Target(read.__name__.strip("_"), _write, read) for read in _READS)


def _refuses(place: Path) -> None:
    raise ConfigError("x = 1: give 2")


SOUND = (Target("refuses", _write, _refuses), Target("accepts", _write, lambda place: None))

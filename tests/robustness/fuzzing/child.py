"""The processes in which hostile inputs are read: one that has imported all, and forks of it.

The first never reads an input. It forks a reader, which tries what it is told to and says how it
went; when that dies, or is killed since it does not end, it says so and forks another at once.

To read one saved input again: `python -m tests.robustness.fuzzing.child NAME FOLDER`.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import numpy as np

from tests.robustness.fuzzing.guard import SECRET, Guard, limit_growth
from tests.robustness.fuzzing.target import Target

GROWTH = 500 << 20  # bytes that a try may take
INPUT = "input"  # the folder of the current one


def targets_of(name: str) -> dict[str, Target]:
    """Return the targets in a constant that is named `module:CONSTANT`."""
    module, _, constant = name.partition(":")
    return {target.name: target for target in getattr(importlib.import_module(module), constant)}


def attempt(target: Target, place: Path, guard: Guard) -> tuple[str, str]:
    """Read one input and return ("accepted" | "refused" | "loss", what was wrong)."""
    try:
        with guard.watching():
            target.read(place)
        verdict, what = "accepted", ""
    except target.refusals as error:
        verdict, what = "refused", str(error)
        if not what.strip():
            verdict, what = "loss", f"{type(error).__name__} without a word"
    except BaseException as error:  # an exit, an interrupt: whatever it is, it is a loss
        where = traceback.extract_tb(error.__traceback__)[-1]
        known = f"{type(error).__name__}: {error!s:.300} ({where.filename}:{where.lineno})"
        verdict, what = "loss", known
        traceback.print_exc()
    if guard.seen:
        verdict, what = "loss", f"touched what it must not: {guard.seen[0]}"
    return verdict, what


class Reader:
    """A folder of its own: valid inputs, the current input, what is outside, a cache."""

    def __init__(self, folder: Path, targets: dict[str, Target], seed: int) -> None:
        self._folder = folder
        self._seed = seed
        self._targets = targets
        self._guard = Guard(folder)

    def try_one(self, name: str, number: int) -> tuple[str, str]:
        """Make input `number` of a target and read it."""
        place = self._folder / INPUT
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        dice = np.random.default_rng([self._seed, zlib.crc32(name.encode()), number])
        target = self._targets[name]
        target.write(self._folder / "valid", place, dice)
        before = self._names()
        limit_growth(GROWTH)
        verdict, what = attempt(target, place, self._guard)
        if new := self._names() ^ before:
            return "loss", f"left or took something outside its folder: {sorted(new)}"
        return verdict, what

    def _names(self) -> set[str]:
        """Return what there is beside the input, and in the folder where no reader may look.

        The process works in the first of them, as somebody does who unpacks what he was sent.
        """
        both = (self._folder, self._folder / SECRET)
        return {str(path.relative_to(self._folder)) for one in both for path in one.iterdir()}


def serve(reader: Reader, answers: TextIO) -> None:
    """Try what standard input asks for, a line each, until it ends."""
    print(f"ready {os.getpid()}", file=answers, flush=True)
    for line in sys.stdin:
        name, number = json.loads(line)
        print(json.dumps(reader.try_one(name, number)), file=answers, flush=True)


def forked(work: Callable[[], None]) -> int:
    """Do something in a process of its own and return that one's exit status."""
    if (child := os.fork()) == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def prepare(folder: Path, targets: dict[str, Target]) -> None:
    """Make the valid inputs, and what is outside."""
    secret = folder / SECRET
    secret.mkdir(exist_ok=True)
    for name in ("secret.json", "secret.safetensors", "secret.jsonl", "secret.arrow"):
        (secret / name).write_text("{}\n", encoding="utf-8")
    for target in targets.values():
        target.prepare(folder / "valid")


def main() -> None:
    """Serve tries until standard input ends; answers go to what was standard output."""
    sys.dont_write_bytecode = True
    if len(sys.argv) == 3:
        name, place = sys.argv[1], Path(sys.argv[2])
        every = targets_of("tests.robustness.fuzzing.targets:TARGETS")
        sys.exit(str(attempt(every[name], place, Guard(place.parent))))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a reader prints is no answer
    folder, targets = Path(sys.argv[1]), targets_of(sys.argv[2])
    os.chdir(folder)
    # In a fork too: training starts threads, and they do not come along into a fork.
    if forked(lambda: prepare(folder, targets)):
        sys.exit("the valid inputs could not be made")
    while status := forked(lambda: serve(Reader(folder, targets, int(sys.argv[3])), answers)):
        print(f"died {status}", file=answers, flush=True)


if __name__ == "__main__":
    main()

"""What a sweep over faults has at its hand, and what has come of it so far."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.robustness.kills.child import Strike, begin, ended
from tests.robustness.kills.kills import Undisturbed
from tests.robustness.kills.likeness import differences
from tests.robustness.kills.scene import Scene, scene_in
from tests.robustness.kills.stages import EARLY_STAGES


@dataclass
class Sweep:
    """A sweep.

    Attributes:
        disk: where the runs are.
        said: what the last command said; not on that disk.
        real: whether the disk can be filled and made read-only, or files can only be kept short.
        config: of the runs, with seeded noise.
        undisturbed: how they must end.
        rng: chooses bits and bytes.
        counts: what was tried, how often.
        losses: a line for all that was wrong.
    """

    disk: Path
    said: Path
    real: bool
    config: Path
    undisturbed: Undisturbed
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    losses: list[str] = field(default_factory=list)

    @contextmanager
    def scene(self, stage: str) -> Iterator[Scene]:
        """Give a new scene, with base model and store where the stage comes after them."""
        scene = scene_in(self.disk / f"trial-{self.counts.total():03d}", self.config)
        if stage not in EARLY_STAGES:
            shutil.copytree(self.undisturbed.run.parent / "cache", scene.cache)
        yield scene
        shutil.rmtree(scene.run.parent)

    def carry_out(self, scene: Scene, strike: Strike | None = None) -> tuple[int, str]:
        """Start a run or take it up, and return its exit status and what it said."""
        status = ended(begin(scene, self.said, strike))
        return status, self.said.read_text(encoding="utf-8", errors="replace")

    def to_the_end(self, scene: Scene) -> list[str]:
        """Take the run up, and return a line for all that is other than in an undisturbed one."""
        status, words = self.carry_out(scene)
        if status:
            return [f"taken up: exit status {status}: {words}"]
        return [f"taken up: {line}" for line in differences(self.undisturbed.run, scene.run)]

    def take_down(self, what: str, problems: list[str]) -> None:
        """Count a trial and keep what was wrong."""
        self.counts[what] += 1
        self.losses += [f"{what}: {line}" for line in problems]


def unclear(status: int, words: str, statuses: tuple[int, ...], *named: str) -> list[str]:
    """Return a line unless a command ended with one message, without a traceback.

    Args:
        status: its exit status.
        words: what it said.
        statuses: those that would do.
        named: what must stand in the message.
    """
    errors = [line for line in words.splitlines() if line.startswith("Error: ")]
    if status not in statuses or len(errors) != 1 or "Traceback" in words:
        return [f"exit status {status}, and no clear message: {words}"]
    missing = [name for name in named if name not in errors[0]]
    return [f"the message does not name {missing}: {errors[0]}"] if missing else []

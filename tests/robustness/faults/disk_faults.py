"""Disks that end and folders that turn read-only in the middle of a run, and at its beginning."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.robustness.faults.disks import (
    fill,
    limit_files,
    make_read_only,
    make_room,
    make_writable,
)
from tests.robustness.faults.sweep import Sweep, unclear
from tests.robustness.kills.child import Strike, kill_myself
from tests.robustness.kills.scene import Scene
from tests.robustness.kills.sight import look
from tests.robustness.kills.stages import EARLY_STAGES

_LEFT = (0, 4096, 65536)  # bytes that are left on a full disk: none, a page, a checkpoint's worth


def full_disk(sweep: Sweep, stage: str, number: int) -> None:
    """Let the disk end right before a change, then make room and take the run up."""
    left = sweep.rng.choice(_LEFT)
    deed = partial(fill, sweep.disk, left) if sweep.real else partial(limit_files, 4096 + left)
    what = "full disk" if sweep.real else "files kept short"
    with sweep.scene(stage) as scene:
        status, words = sweep.carry_out(scene, Strike(stage, number, deed))
        problems = _after_a_stop(scene, status, words) if status else []
        problems += [f"{path.name}: left behind" for path in scene.run.rglob(".*.tmp")]
        make_room(sweep.disk)
        problems += sweep.to_the_end(scene)
    sweep.take_down(f"{what} in {stage}" if status else f"{what} where nothing grew", problems)


def read_only(sweep: Sweep, stage: str, number: int) -> None:
    """Let the run's folder, or the cache while that is built, turn read-only before a change."""
    with sweep.scene(stage) as scene:
        folder = scene.cache if stage in EARLY_STAGES else scene.run
        strike = Strike(stage, number, partial(_freeze, folder))
        status, words = sweep.carry_out(scene, strike)
        problems = _after_a_stop(scene, status, words) if status else []
        make_writable(folder)
        problems += sweep.to_the_end(scene)
    what = f"read-only in {stage}" if status else "read-only too late to matter"
    sweep.take_down(what, problems)


def read_only_from_the_start(sweep: Sweep) -> None:
    """Begin a run, and take one up, where nothing can be written: exit status 2."""
    for what in ("fresh", "taken up"):
        with sweep.scene("begin") as scene:
            if what == "taken up":
                sweep.carry_out(scene, Strike("evaluate", 8, kill_myself))
            else:
                scene.run.mkdir()
            make_read_only(scene.run)
            status, words = sweep.carry_out(scene)
            problems = unclear(status, words, (2,), str(scene.run), "cannot be written")
            make_writable(scene.run)
            problems += [*look(scene).problems, *sweep.to_the_end(scene)]
        sweep.take_down(f"read-only from the start, {what}", problems)


def _freeze(folder: Path) -> None:
    if folder.is_dir():  # else it is about to be made
        make_read_only(folder)


def _after_a_stop(scene: Scene, status: int, words: str) -> list[str]:
    return [
        *look(scene).problems,
        *unclear(status, words, (1, 2), str(scene.run.parent), "cannot be written"),
    ]

"""Kills: runs that are killed again and again, taken up each time, and end as if nothing had been.

Three kills of four come at a random moment, the others right before a random change of the disk.
After each one, before the restart, what is on disk is read (`sight.py`). Two runs of three have
seeded noise and must end in the same bits as a run that was left alone, which is made by the
command itself, `python -m fedsim.cli.main`. The third has fresh noise: another model each time,
but every release that was ever seen on disk must be in the ledger, and the ledger never shrinks.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import write_speeches
from tests.robustness.kills.child import Strike, begin, ended, kill_myself
from tests.robustness.kills.likeness import differences, model_differences, page_differences
from tests.robustness.kills.scene import ROUNDS, Scene, scene_in, write_config
from tests.robustness.kills.sight import METRICS, look, prints, stage_now
from tests.robustness.kills.stages import QUIET_STAGES, STAGES
from tests.robustness.outcome import Outcome

log = logging.getLogger("tests.robustness")

KILLS = 100
_MOST_OF_ONE_RUN = 12  # so that every run ends, and is compared
_AIMED = 0.25  # of the kills
_KILLED = -9


@dataclass(frozen=True)
class Undisturbed:
    """What a run is when it is left alone.

    Attributes:
        run: the folder of one with seeded noise.
        seconds: a life takes, everything built anew; and with that there.
        changes: of the disk, by stage.
    """

    run: Path
    seconds: list[float]
    changes: dict[str, int]


@dataclass
class _Tally:
    kills: int
    deadline: float
    rng: random.Random
    undisturbed: Undisturbed
    counts: Counter[str] = field(default_factory=Counter)
    losses: list[str] = field(default_factory=list)

    @property
    def goes_on(self) -> bool:
        """Whether there are kills and seconds left."""
        return self.counts["kills"] < self.kills and time.monotonic() < self.deadline


def run(folder: Path, seconds: float, seed: int, kills: int = KILLS) -> Outcome:
    """Kill runs `kills` times in all, or as often as the seconds allow."""
    deadline = time.monotonic() + seconds
    rng = random.Random(seed)  # noqa: S311
    configs = {noise: _config(folder, noise, seed) for noise in ("seeded", "secure")}
    tally = _Tally(kills, deadline, rng, leave_alone(folder, configs["seeded"]))
    number = 0
    while tally.goes_on or number < 2:
        noise = "secure" if number % 3 == 1 else "seeded"
        scene = scene_in(folder / f"run-{number:03d}", configs[noise])
        _torture(scene, noise == "seeded", tally)
        if not tally.losses:
            shutil.rmtree(scene.run.parent)
        number += 1
    for stage in (*STAGES, *QUIET_STAGES):
        tally.counts.setdefault(f"killed in {stage}", 0)
    return Outcome("kills", dict(tally.counts), tuple(tally.losses))


def leave_alone(folder: Path, config: Path) -> Undisturbed:
    """Carry out the run by its command, and twice more in order to time and count it."""
    scene = scene_in(folder / "undisturbed", config)
    command = [sys.executable, "-m", "fedsim.cli.main", *scene.arguments]
    said = scene.run.parent / "log"
    with said.open("wb") as file:
        subprocess.run(
            command, check=True, env={**os.environ, **scene.environment}, stdout=file, stderr=file
        )
    seconds, twin = [], scene_in(folder / "counted", config)
    counted = twin.run.parent / "changes.json"
    for into in (counted, None):
        shutil.rmtree(twin.run, ignore_errors=True)
        process = begin(twin, said, count_into=into)
        started = time.monotonic()  # after the imports of the process that all are forked from
        if ended(process):
            raise RuntimeError(f"an undisturbed run failed:\n{said.read_text(errors='replace')}")
        seconds.append(time.monotonic() - started)
    if lines := differences(scene.run, twin.run):
        raise RuntimeError(f"two undisturbed runs differ: {lines}")
    changes = json.loads(counted.read_text(encoding="utf-8"))
    return Undisturbed(scene.run, seconds, changes)


def _config(folder: Path, noise: str, seed: int) -> Path:
    text, config = folder / "text.jsonl", folder / f"{noise}.toml"
    write_speeches(text, seed)
    write_config(config, text, noise)
    return config


def _torture(scene: Scene, seeded: bool, tally: _Tally) -> None:
    """Kill a run until it ends by itself or has had enough, and look at what came out."""
    said = scene.run.parent / "log"
    name = f"{scene.run.parent.name} ({'seeded' if seeded else 'secure'})"
    seen = charged = begun_at = kills = 0  # releases seen in all, charged, the attempt's start
    while True:
        before = prints(scene)
        left = tally.goes_on and kills < _MOST_OF_ONE_RUN
        status, pid, aimed = _attempt(scene, said, tally) if left else _to_the_end(scene, said)
        if status != _KILLED:
            break
        kills += 1
        sight = look(scene)
        stage = aimed or stage_now(scene, sight, before, pid)
        problems = [*sight.problems, *model_differences(tally.undisturbed.run, scene.run, seeded)]
        if prints(scene).get(METRICS) != before.get(METRICS):  # else it was not yet taken up
            seen += max(0, sight.checkpoint - begun_at, sight.last_line - begun_at)
        if sight.releases < charged:
            problems.append(f"the ledger shrank from {charged} to {sight.releases}")
        if not seeded and sight.releases < seen:
            problems.append(f"{seen} fresh releases were on disk, {sight.releases} are charged")
        begun_at, charged = sight.checkpoint, sight.releases
        tally.counts["kills"] += 1
        tally.counts[f"killed in {stage}"] += 1
        tally.losses += [f"{name}, killed in {stage}: {line}" for line in problems]
        if tally.counts["kills"] % 10 == 0:
            log.info("kills: %d of %d", tally.counts["kills"], tally.kills)
    tally.counts["runs brought to their end"] += 1
    problems = (
        _end_of(scene, seeded, tally.undisturbed.run, max(charged, seen))
        if not status
        else [f"exit status {status}: {said.read_text(encoding='utf-8', errors='replace')}"]
    )
    tally.losses += [f"{name}, at its end after {kills} kills: {line}" for line in problems]


def _end_of(scene: Scene, seeded: bool, reference: Path, charged: int) -> list[str]:
    if seeded:
        return differences(reference, scene.run)
    sight = look(scene)
    lines = [*sight.problems, *page_differences(scene.run)]
    lines += model_differences(reference, scene.run, seeded)
    lines += [f"{path.name}: left behind" for path in scene.run.rglob(".*")]
    if sight.releases < charged or sight.last_line != ROUNDS:
        lines.append(f"{sight.releases} charged of {charged}, {sight.last_line} rounds")
    return lines


def _attempt(scene: Scene, said: Path, tally: _Tally) -> tuple[int, int, str | None]:
    """Start or take up a run and kill it, unless it ends before.

    Returns:
        Its exit status, its process id, and the stage that was aimed at if one was.
    """
    rng, built = tally.rng, (scene.cache / "stores").exists()
    if rng.random() < _AIMED:
        return _aimed(scene, said, tally, _stage_to_aim_at(tally, built))
    process = begin(scene, said)
    pid, started = process.pid or 0, time.monotonic()
    process.join(rng.uniform(0.0, tally.undisturbed.seconds[built]))
    process.kill()
    status = ended(process)
    if status != _KILLED:  # the machine has become quicker
        tally.undisturbed.seconds[built] = time.monotonic() - started
    return status, pid, None


def _stage_to_aim_at(tally: _Tally, built: bool) -> str:
    """Return the stage that was hit least so far, of those that can still come."""
    to_come = STAGES[2:] if built else STAGES
    return min(to_come, key=lambda stage: (tally.counts[f"killed in {stage}"], tally.rng.random()))


def _aimed(scene: Scene, said: Path, tally: _Tally, stage: str) -> tuple[int, int, str | None]:
    strike = Strike(stage, tally.rng.randrange(tally.undisturbed.changes[stage]), kill_myself)
    process = begin(scene, said, strike)
    pid = process.pid or 0
    return ended(process), pid, stage


def _to_the_end(scene: Scene, said: Path) -> tuple[int, int, str | None]:
    process = begin(scene, said)
    pid = process.pid or 0
    return ended(process), pid, None

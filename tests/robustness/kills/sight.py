"""What is on disk after a run was cut off: the stage it was in, and whether all of it is sound."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fedsim.accounting.ledger import Ledger
from fedsim.data.store import TokenStore
from fedsim.errors import ConfigError
from fedsim.runner.checkpoint import checkpoints_in, load_checkpoint, round_of
from fedsim.runner.folder import RunFolder
from tests.robustness.kills.scene import CHECKPOINT_EVERY, ROUNDS, Scene
from tests.robustness.kills.stages import stage_of

_FIRST_FILES = {"metrics": "begin"}  # written whole when a run begins or is taken up

METRICS = "run/metrics.jsonl"
"""Among the prints: the file that taking a run up writes anew."""

Prints = dict[str, tuple[int, int]]
"""Of files by path: time of the last change (ns) and size (bytes)."""


@dataclass(frozen=True)
class Sight:
    """The disk between a kill and the restart.

    Attributes:
        checkpoint: rounds behind the newest checkpoint; 0 where there is none.
        last_line: the last round in the metrics; -1 where there is none.
        releases: in the ledger.
        visible: rounds that anything on disk bears witness to.
        problems: what must never be so, a line each.
    """

    checkpoint: int
    last_line: int
    releases: int
    visible: int
    problems: tuple[str, ...]


def look(scene: Scene) -> Sight:
    """Read everything that there is, without changing it."""
    folder, problems = RunFolder(scene.run), _unreadable(scene)
    rounds = [round_of(path) for path in checkpoints_in(folder.checkpoints)]
    checkpoint = max(rounds, default=0)
    lines = [int(line["round"]) for line in folder.read_metrics()]
    if lines != list(range(len(lines))):
        problems.append(f"metrics.jsonl: rounds {lines}")
    try:
        charged = folder.read_ledger()
    except ConfigError as error:
        problems.append(str(error))
        charged = Ledger()
    last_line = lines[-1] if lines else -1
    complete = folder.model.exists() or folder.report.exists()
    visible = max(checkpoint, last_line, ROUNDS if complete else 0)
    if charged.num_releases < visible:
        problems.append(f"{visible} rounds are on disk, {charged.num_releases} are charged")
    for path in checkpoints_in(folder.checkpoints):
        try:
            state = load_checkpoint(path)
        except ConfigError as error:
            problems.append(str(error))
            continue
        if state.round != round_of(path) or state.ledger.num_releases > charged.num_releases:
            problems.append(f"{path.name}: of round {state.round}, with charges nobody else has")
    return Sight(checkpoint, last_line, charged.num_releases, visible, tuple(problems))


def prints(scene: Scene) -> Prints:
    """Return what tells whether anything was touched."""
    root = scene.run.parent
    found: Prints = {}
    for path in (*scene.run.rglob("*"), *scene.cache.rglob("*")):
        status = path.stat()
        found[str(path.relative_to(root))] = (status.st_mtime_ns, status.st_size)
    return found


def stage_now(scene: Scene, sight: Sight, before: Prints, pid: int) -> str:
    """Return the stage that a process was in when it was killed, as far as the disk says."""
    now = prints(scene)
    for name in now:
        if name.endswith(f".{pid}.tmp"):
            return _FIRST_FILES.get(Path(name).name.split(".")[1]) or _by_path(scene, name)
    if not list((scene.cache / "models").glob("[!.]*")):
        return "base model"
    if not list((scene.cache / "stores").glob("[!.]*")):
        return "store"
    if now == before:
        return "loading"
    return "begin" if now.get(METRICS) == before.get(METRICS) else _by_rounds(scene, sight)


def _by_path(scene: Scene, name: str) -> str:
    return stage_of(str(scene.run.parent / name), scene.run, scene.cache) or "loading"


def _by_rounds(scene: Scene, sight: Sight) -> str:
    last, complete = sight.last_line, (scene.run / "model").exists()
    if last < 0:
        return "begin"
    if last % CHECKPOINT_EVERY == 0 and sight.checkpoint < last:
        return "checkpoint"
    if last == ROUNDS:
        return "report"
    if sight.releases > last:  # seeded rounds that are done again were charged before
        return "model" if complete and sight.releases == ROUNDS else "evaluate"
    return "train"


def _unreadable(scene: Scene) -> list[str]:
    """Return a line for every file that is there and half, or not what its name says."""
    problems = []
    for path in (*scene.run.glob("[!.]*.json"), *scene.run.glob("model/*.json")):
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            problems.append(f"{path.name}: {error}")
    for store in (scene.cache / "stores").glob("[!.]*"):
        try:
            TokenStore.open(store).verify()
        except ConfigError as error:
            problems.append(str(error))
    return problems

"""Runs and builds that are killed, or whose disk is full, lose nothing when they are resumed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from fedsim.runner.checkpoint import checkpoints_in, round_of
from fedsim.runner.folder import RunFolder
from tests.helpers.commands import fedsim
from tests.helpers.processes import (
    Strike,
    break_trackers,
    ended,
    fill_the_disk,
    kill_myself,
    run_out_of_memory,
    stop_myself,
)
from tests.robustness.scene import ROUNDS, Scene, check_disk, check_same, contents

NUM_KILLS = int(os.environ.get("FEDSIM_TEST_KILLS", "2"))

WRITES = [  # in the order of a run's life; each is a part of a path and the index of a write
    ("models/", 2),
    ("stores/", 4),
    ("config.toml", 1),
    ("ledger", 3),
    ("metrics", 2),
    ("checkpoints/", 5),
    ("ledger", 9),
    ("model.", 1),
    ("report", 1),
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, speeches: Path) -> tuple[Scene, float]:
    """A seeded run without a kill, and its seconds."""
    scene = Scene.make(tmp_path_factory.mktemp("undisturbed") / "one", speeches)
    ended(scene.start(Strike("config.toml", 0, kill_myself)))  # now everything is imported
    started = time.monotonic()
    scene.to_the_end()
    return scene, time.monotonic() - started


def test_a_run_killed_before_every_kind_of_write_ends_in_the_same_bits(
    undisturbed: tuple[Scene, float], speeches: Path, tmp_path: Path
) -> None:
    scene, charged = Scene.make(tmp_path / "killed", speeches), 0
    for path, number in WRITES:
        assert ended(scene.start(Strike(path, number, kill_myself))) == -signal.SIGKILL, path
        charged = check_disk(scene, charged)
    scene.to_the_end()
    check_same(undisturbed[0].run, scene.run)


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_a_run_killed_at_random_moments(
    noise: str, undisturbed: tuple[Scene, float], speeches: Path, tmp_path: Path
) -> None:
    """With secure noise a resumed run repeats rounds with new noise, and is charged for both."""
    (whole, seconds), rng = undisturbed, random.Random(NUM_KILLS)  # noqa: S311
    scene, charged = Scene.make(tmp_path / "killed", speeches, noise), 0
    for _ in range(NUM_KILLS):
        process = scene.start()
        process.join(rng.uniform(0.0, seconds))
        process.kill()
        assert ended(process) in (0, -signal.SIGKILL), scene.log
        charged = check_disk(scene, charged)
    scene.to_the_end()
    check_disk(scene, charged)
    if noise == "seeded":
        check_same(whole.run, scene.run)
    assert contents(scene.run).keys() == contents(whole.run).keys()


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_a_run_that_is_stopped_or_fails_at_random_moments_loses_no_round(
    noise: str, undisturbed: tuple[Scene, float], speeches: Path, tmp_path: Path
) -> None:
    """By TERM, HUP, a tracker or an evaluation without memory: each released round is kept."""
    (whole, seconds), rng = undisturbed, random.Random(f"{NUM_KILLS} {noise}")  # noqa: S311
    scene, ends = Scene.make(tmp_path / "stopped", speeches, noise), Counter[str]()
    kinds = ["SIGTERM", "memory", "SIGHUP", "tracker"]
    first = 2 * (noise == "secure")
    for number in range(first, first + NUM_KILLS):
        kind = kinds[number % len(kinds)]
        strikes = {
            "tracker": Strike("config.toml", 0, break_trackers),
            "memory": Strike("ledger", rng.randrange(2 * ROUNDS), run_out_of_memory),
        }
        process = scene.start(strikes.get(kind))
        if kind.startswith("SIG"):
            process.join(rng.uniform(0.0, seconds))
            if process.is_alive():
                os.kill(process.pid or 0, signal.Signals[kind])
        status = ended(process)
        # Before it has imported what it needs, a signal ends the process at once.
        early = (-signal.SIGTERM, -signal.SIGHUP)
        allowed = {"tracker": (0,), "memory": (0, 1)}.get(kind, (0, 130, *early))
        assert status in allowed, scene.log
        check_kept(scene)
        ends[f"{kind}: {status}"] += 1
        if RunFolder(scene.run).report.exists():
            check_the_end(scene, whole, noise)
            shutil.rmtree(scene.run)
    scene.to_the_end()
    check_the_end(scene, whole, noise)
    print(noise, dict(ends))  # noqa: T201  (for whoever raises the number of kills)


def check_kept(scene: Scene) -> None:
    """Check that each charged round is in the newest checkpoint, and none was charged twice."""
    folder = RunFolder(scene.run)
    charged = check_disk(scene)
    newest = max(map(round_of, checkpoints_in(folder.checkpoints)), default=0)
    assert charged == newest, scene.log


def check_the_end(scene: Scene, whole: Scene, noise: str) -> None:
    assert RunFolder(scene.run).read_ledger().num_releases == ROUNDS
    if noise == "seeded":
        check_same(whole.run, scene.run, checkpoints=False)


def test_a_full_disk_is_one_error_and_the_run_goes_on_once_there_is_room(
    undisturbed: tuple[Scene, float], speeches: Path, tmp_path: Path
) -> None:
    scene, charged = Scene.make(tmp_path / "full", speeches), 0
    for path, number in (("stores/", 1), ("checkpoints/", 3), ("model.", 0), ("report", 0)):
        assert ended(scene.start(Strike(path, number, fill_the_disk))) in (1, 2), path
        (line,) = (line for line in scene.log.splitlines() if line.startswith("Error: "))
        assert str(scene.folder) in line and "cannot be written" in line
        assert "Traceback" not in scene.log
        assert not list(scene.run.rglob(".*.tmp"))
        charged = check_disk(scene, charged)
    scene.to_the_end()
    check_same(undisturbed[0].run, scene.run)


def test_a_second_process_on_a_run_folder_is_refused(
    undisturbed: tuple[Scene, float], speeches: Path, tmp_path: Path
) -> None:
    scene = Scene.make(tmp_path / "both", speeches)
    first = scene.start(Strike("checkpoints/", 3, stop_myself))
    pid, deadline = first.pid or 0, time.monotonic() + 120
    try:
        while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        before = contents(scene.run)
        for options, words in (
            ([], "already exists"),
            (["--resume"], "another process is writing"),
        ):
            complaint = fedsim("run", scene.config, "--out", scene.run, *options).complaint
            assert complaint.startswith(f"Error: --out {scene.run}: {words}")
        assert contents(scene.run) == before
    finally:
        os.kill(pid, signal.SIGKILL)
    assert ended(first) == -signal.SIGKILL
    scene.to_the_end()
    check_same(undisturbed[0].run, scene.run)

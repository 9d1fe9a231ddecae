"""A run in a process of its own that can be struck: killed, or its disk filled, at a given moment.

The process is forked from one that has imported everything and done nothing else
(`multiprocessing`'s forkserver), which saves it some seconds of imports. From there on it is the
command: `fedsim.cli.main.main` with the command's arguments, environment and streams, ending with
the command's exit status. Only the imports, in which nothing is on disk, cannot be struck.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.robustness.kills.scene import Scene
from tests.robustness.kills.stages import stage_of

_IMPORTED = (
    "fedsim.cli.main",
    "fedsim.runner.launch",
    "fedsim.runner.session",
    "fedsim.clients.app",
    "fedsim.clients.models.tiny_gpt",
    "fedsim.strategies.uls",
    "fedsim.report.drawing",
    "tests.robustness.kills.child",
)
_CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class Strike:
    """What befalls a run right before one of its changes of the disk.

    Attributes:
        stage: one of `STAGES`; changes are counted in it alone.
        number: of the change, from 0.
        deed: what is done; can be pickled.
    """

    stage: str
    number: int
    deed: Callable[[], None]


def kill_myself() -> None:
    """End this process at once, by SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)


def begin(
    scene: Scene, log: Path, strike: Strike | None = None, count_into: Path | None = None
) -> BaseProcess:
    """Start a run or take it up, and return its process.

    Args:
        scene: whose run.
        log: receives what the command says.
        strike: what befalls it; it may end before.
        count_into: receives its changes of the disk by stage, as JSON, when it ends.
    """
    return _forked(_live, scene, log, strike, count_into)


def start(log: Path, *arguments: object, **environment: str) -> BaseProcess:
    """Start `fedsim` with arguments in a process of its own session, and return the process.

    Args:
        log: receives what the command says.
        arguments: of the command.
        environment: what it has on top of this process's.
    """
    return _forked(_as_command, {**os.environ, **environment}, log, [*map(str, arguments)])


def _forked(target: Callable[..., None], *arguments: object) -> BaseProcess:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a fork with threads would inherit their locks
    # What is killed leaves semaphores (tqdm's); they are removed, and need not be spoken of.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def ended(process: BaseProcess) -> int:
    """Wait for its end and return the exit status, or minus the signal that killed it."""
    process.join()
    status = process.exitcode
    process.close()
    assert status is not None
    return status


def _as_command(environment: Mapping[str, str], log: Path, arguments: Sequence[str]) -> None:
    os.setsid()
    with log.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.environ.update(environment)
    sys.argv = ["fedsim", *arguments]
    from fedsim.cli.main import main  # noqa: PLC0415

    main()


def _live(scene: Scene, log: Path, strike: Strike | None, count_into: Path | None) -> None:
    changes: Counter[str] = Counter()
    sys.addaudithook(_hook(scene, strike, changes))
    try:
        _as_command(scene.environment, log, scene.arguments)
    finally:
        if count_into is not None:
            count_into.write_text(json.dumps(changes), encoding="utf-8")


def _hook(
    scene: Scene, strike: Strike | None, changes: Counter[str]
) -> Callable[[str, tuple[Any, ...]], None]:
    """Return an audit hook, which Python calls before it changes the disk."""
    struck = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal struck
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES
        if struck or not (writes or event in _CHANGES):
            return
        with suppress(TypeError, ValueError):
            path = os.path.abspath(os.fsdecode(arguments[0]))  # noqa: PTH100  (many, and quick)
            if (stage := stage_of(path, scene.run, scene.cache)) is None:
                return
            if strike is not None and (stage, changes[stage]) == (strike.stage, strike.number):
                struck = True
                strike.deed()
            changes[stage] += 1

    return hook

"""`fedsim` in a process of its own, which a test can kill, stop or starve before a chosen write.

Processes are forked from one that has imported everything (`multiprocessing`'s forkserver), which
saves seconds of imports. From there on it is the command: `fedsim.cli.main.main` with the command's
arguments, environment and streams.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import torch

_IMPORTED = (  # with what a run imports only when it needs it
    "fedsim.cli.main",
    "fedsim.runner.launch",
    "fedsim.report.drawing",
    "fedsim.clients.app",
    "fedsim.clients.engine_choice",
    "fedsim.clients.engines.per_example.materialised",
    "fedsim.clients.models.loading",
    "fedsim.clients.models.tiny_gpt",
    "fedsim.clients.tasks.fedsgd",
    "fedsim.evaluation.score_cache",
    "fedsim.strategies.uls",
    "matplotlib.backends.backend_svg",
    "tests.helpers.processes",
)
_CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class Strike:
    """An act right before a process changes the disk.

    Attributes:
        path: part of the changed path; other changes are not counted.
        number: index of the change, from 0.
        act: what happens; must be picklable.
    """

    path: str
    number: int
    act: Callable[[], None]


def kill_myself() -> None:
    """End this process by SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop_myself() -> None:
    """Stop this process until SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def fill_the_disk() -> None:
    """Let no file of this process grow beyond one page: writes fail as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))


def run_out_of_memory() -> None:
    """Let the next evaluation of this process fail as where a GPU has no memory left."""
    from fedsim.runner import session  # noqa: PLC0415

    def evaluate(*_: object, **__: object) -> NoReturn:
        raise torch.OutOfMemoryError("CUDA out of memory")

    vars(session).update(evaluate=evaluate, load_model=evaluate)


def break_trackers() -> None:
    """Give the run of this process a tracker that always raises."""
    from fedsim.runner import session  # noqa: PLC0415
    from fedsim.trackers.tracking import tracking  # noqa: PLC0415

    vars(session)["tracking"] = lambda _none, *rest: tracking({"broken": _Broken}, *rest)


class _Broken:
    def __init__(self, _run_dir: Path, _config: object, _terms: str) -> None: ...

    def on_round(self, line: object) -> NoReturn:
        raise ConnectionError("the server is down")

    def close(self) -> NoReturn:
        raise ConnectionError("the server is down")


def start(
    log: Path, *arguments: object, strike: Strike | None = None, **environment: str
) -> BaseProcess:
    """Start `fedsim` in its own session and return the process.

    Args:
        log: receives the output.
        arguments: of the command.
        strike: what happens before a change of the disk.
        environment: variables in addition to this process's.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a fork with threads would inherit their locks
    # A killed process leaves tqdm's semaphores, which are removed with a warning.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    process = context.Process(
        target=_command, args=({**os.environ, **environment}, log, [*map(str, arguments)], strike)
    )
    process.start()
    return process


def ended(process: BaseProcess) -> int:
    """Wait for the end and return the exit status, or minus the signal that killed it."""
    process.join()
    status = process.exitcode
    process.close()
    assert status is not None
    return status


def _command(
    environment: Mapping[str, str], log: Path, arguments: Sequence[str], strike: Strike | None
) -> None:
    os.setsid()
    with log.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.environ.update(environment)
    sys.argv = ["fedsim", *arguments]
    if strike is not None:
        sys.addaudithook(_hook(strike))
    from fedsim.cli.main import main  # noqa: PLC0415

    main()


def _hook(strike: Strike) -> Callable[[str, tuple[Any, ...]], None]:
    """Return an audit hook; Python calls it before it changes the disk."""
    left = strike.number

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES
        if not (writes or event in _CHANGES):
            return
        with suppress(TypeError, ValueError):
            if strike.path in os.fsdecode(arguments[0]):
                left -= 1
                if left == -1:
                    strike.act()

    return hook

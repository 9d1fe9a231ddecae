"""A second process on a run folder that another is writing into: refused, and nothing is harmed."""

from __future__ import annotations

import os
import signal
import time

import psutil

from tests.robustness.faults.sweep import Sweep, unclear
from tests.robustness.kills.child import Strike, begin, ended
from tests.robustness.kills.likeness import differences

_PATIENCE = 300.0  # seconds until the first process must have come to its stage


def second_process(sweep: Sweep, stage: str) -> None:
    """Stop a run in a stage, try to take it up from another process, and let it go on."""
    with sweep.scene(stage) as scene:
        # The last change of "begin" is behind the lock, and so are all of the later stages.
        number = sweep.undisturbed.changes[stage] - 1
        first_said = sweep.said.with_name("first")
        first = begin(scene, first_said, Strike(stage, number, stop_myself))
        _wait_until_stopped(first.pid or 0)
        status, words = sweep.carry_out(scene)
        problems = unclear(status, words, (2,), str(scene.run), f"pid {first.pid}")
        os.kill(first.pid or 0, signal.SIGCONT)
        if status := ended(first):
            problems.append(f"the first: exit status {status}: {first_said.read_text()}")
        problems += differences(sweep.undisturbed.run, scene.run)
    sweep.take_down(f"second process in {stage}", problems)


def stop_myself() -> None:
    """Stop this process until it is told to go on."""
    os.kill(os.getpid(), signal.SIGSTOP)


def _wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        if time.monotonic() > deadline:
            raise RuntimeError("the first process never came to its stage")
        time.sleep(0.01)

"""Forked processes that import another version of our modules.

The parent has imported everything slow (torch above all) and nothing of ours, so that a child has
only our own modules and the tests to import: that takes a second or two and not twenty.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]

OURS = ("fedsim", "tests")
OPTIONS = [
    *("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:anyio"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # plugins were imported before
]


def warm_up(tests: Sequence[str]) -> None:
    """Import what these files of tests import and is not ours.

    Raises:
        RuntimeError: a module of ours was imported already, and no child could import another.
    """
    collect = "pytest.main(['-q', '--collect-only', *sys.argv[1:]])"
    code = f"import pytest, sys; {collect}; print(*sys.modules)"
    command = [sys.executable, "-c", code, *OPTIONS, *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    for name in done.stdout.splitlines()[-1].split():
        if name.partition(".")[0] not in OURS:
            with contextlib.suppress(ImportError):  # what another module made up
                importlib.import_module(name)
    mine = {"tests", *(name for name in sys.modules if name.startswith(__package__))}
    if ours := sorted({name for name in sys.modules if name.partition(".")[0] in OURS} - mine):
        raise RuntimeError(f"imported before the fork: {ours}")


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Give a folder that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="pitfall-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def in_a_child(act: Callable[[], int], folder: Path, seconds: float) -> int | None:
    """Return the status that `act` gives in a forked process, or None if it takes too long.

    What the process prints goes to `folder`/output.txt.
    """
    child = os.fork()
    if child != 0:
        return _wait(child, seconds)
    status = 99
    try:
        os.setsid()
        output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        status = act()
    except BaseException:  # told, for the process ends here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(child: int, seconds: float) -> int | None:
    """Return the exit status, or None for a process that was killed for taking too long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            with contextlib.suppress(ProcessLookupError):  # what it started and left behind
                os.killpg(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None

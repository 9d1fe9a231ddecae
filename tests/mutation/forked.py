"""Tests in a forked process, in which one module is a mutant.

The parent has imported everything slow (torch above all) and nothing of ours, so that a child has
only our own modules and the tests to import: a mutant costs a second or two and not twenty.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[2]

Verdict = Literal["caught", "survived", "too slow"]

OURS = ("fedsim", "strategies", "clients", "tests")
OPTIONS = [
    *("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:anyio"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # plugins were imported before
]


class _MutantImporter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module the code of a mutant when it is imported."""

    def __init__(self, module: str, file: Path, tree: ast.Module) -> None:
        self._module = module
        self._file = str(file)
        self._code = compile(tree, self._file, "exec")

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec of the one module."""
        if fullname != self._module:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=self._file)
        spec.has_location = True  # inspect.getsource goes by the file
        return spec

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the mutant's code."""
        exec(self._code, module.__dict__)  # noqa: S102


def warm_up(tests: Sequence[str]) -> None:
    """Import what these files of tests import and is not ours.

    Raises:
        RuntimeError: a module of ours was imported already, and no child could have a mutant of it.
    """
    collect = "pytest.main(['-q', '--collect-only', *sys.argv[1:]])"
    code = f"import pytest, sys; {collect}; print(*sys.modules)"
    command = [sys.executable, "-c", code, *OPTIONS, *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    for name in done.stdout.splitlines()[-1].split():
        if name.partition(".")[0] not in (*OURS, "experiments"):
            with contextlib.suppress(ImportError):  # what another module made up
                importlib.import_module(name)
    theirs = set(sys.modules) - {"tests"}
    theirs -= {name for name in theirs if name.startswith("tests.mutation")}  # this tool itself
    if ours := sorted(name for name in theirs if name.partition(".")[0] in OURS):
        raise RuntimeError(f"imported before the fork: {ours}")


@dataclass(frozen=True)
class Judged:
    """What became of a mutant, the seconds that took, and the end of what pytest printed."""

    verdict: Verdict
    seconds: float
    output: str


def judge(file: str, tree: ast.Module | None, test: str, seconds: float) -> Judged:
    """Run a file of tests on a mutant.

    Args:
        file: that is mutated, in the repository.
        tree: the mutant; None for the file as it is.
        test: the file of tests; it ends at the first failure.
        seconds: after which a mutant counts as noticed: it does not end.
    """
    began = time.monotonic()
    with scratch() as folder:
        status = in_a_child(lambda: _run_tests(file, tree, test, folder), folder, seconds)
        output = (folder / "output.txt").read_text(errors="replace")[-2000:]
    verdict: Verdict = "too slow" if status is None else "caught" if status else "survived"
    return Judged(verdict, time.monotonic() - began, output)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Give a folder that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
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


def patient_hypothesis() -> None:
    """Let examples take their time, and leave none behind: a busy machine is not a failure."""
    from hypothesis import settings  # noqa: PLC0415  (slow)

    settings.register_profile("mutation", deadline=None, database=None)
    settings.load_profile("mutation")


def _run_tests(file: str, tree: ast.Module | None, test: str, folder: Path) -> int:
    if tree is not None:
        module = file.removesuffix(".py").replace("/", ".")
        sys.meta_path.insert(0, _MutantImporter(module, ROOT / file, tree))
    import pytest  # noqa: PLC0415  (slow)

    patient_hypothesis()
    options = ["-x", "-q", "--tb=short", *OPTIONS, f"--basetemp={folder / 'tmp'}"]
    return int(pytest.main([*options, test]))


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

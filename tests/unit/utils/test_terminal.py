"""Tables and sentences fit where they are printed: no bars and no breaks in files and notebooks."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.table import Table

from fedsim.cli.main import _ToStandardError
from fedsim.data.building import build
from fedsim.experiments.studies.common.output import steps
from fedsim.runner import progress
from fedsim.runner.progress import CountProgress
from fedsim.utils import terminal
from fedsim.utils.terminal import is_terminal, progress_console, status_when_slow, table_console
from tests.conftest import Capture, Log, Patch


@pytest.fixture(autouse=True)
def _no_columns(monkeypatch: Patch) -> Iterator[None]:
    for name in ("COLUMNS", "TERM", "JPY_PARENT_PID", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    yield


def test_a_pipe_is_wide_unless_columns_says_otherwise(monkeypatch: Patch, capsys: Capture) -> None:
    assert table_console().width == 200
    monkeypatch.setenv("COLUMNS", "90")
    assert table_console().width == 90


def test_a_terminal_is_as_wide_as_it_is_but_not_a_notebooks(
    monkeypatch: Patch, capsys: Capture
) -> None:
    """The shell escape of a notebook has a terminal of 80 columns, and keeps what is written."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("os.get_terminal_size", lambda _=0: os.terminal_size((71, 20)))
    assert is_terminal(sys.stdout)
    assert table_console().width == 71
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    assert not is_terminal(sys.stdout)
    assert table_console().width == 200


def test_a_file_gets_no_colours_whatever_is_forced(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not progress_console().is_terminal
    table = Table("ε")
    table.add_row("1")
    table_console().print(table)
    assert "\x1b" not in capsys.readouterr().out


def test_what_is_logged_goes_to_what_is_standard_error_then() -> None:
    """A bar takes its place while it is shown: a line that went past it would be glued to it."""
    log, handler = logging.getLogger("of this test"), _ToStandardError()
    log.addHandler(handler)
    try:
        with redirect_stderr(io.StringIO()) as said:
            log.warning("a line")
    finally:
        log.removeHandler(handler)
    assert said.getvalue() == "a line\n"


def test_long_work_says_something_where_there_is_no_bar(
    caplog: Log, capsys: Capture, monkeypatch: Patch
) -> None:
    with caplog.at_level(logging.INFO), CountProgress("audit", 25) as bar:
        for _ in range(25):
            bar.advance()
    assert [record.message for record in caplog.records] == [
        f"audit: round {number} of 25" for number in (3, 5, 8, 10, 13, 15, 18, 20, 23, 25)
    ]
    caplog.clear()
    now = iter([0.0, 1.0, 29.0, 31.0, 31.0, 60.0, 62.0, 62.0])
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: next(now)))
    with caplog.at_level(logging.INFO), build.terminal_progress() as report:
        for line in ("one", "two", "three", "four", "five"):
            report(line)
    assert [record.message for record in caplog.records] == [
        f"building the store (not protected by the privacy guarantee): {line}"
        for line in ("three", "five")
    ]
    caplog.clear()
    now = iter([0.0, 1.0, 29.0, 31.0, 31.0])
    with caplog.at_level(logging.INFO):
        assert list(steps("abc", "noise of the filter")) == ["a", "b", "c"]
    assert [record.message for record in caplog.records] == ["noise of the filter: 2 of 3"]


def test_rounds_say_how_long_they_will_take(monkeypatch: Patch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    bar = CountProgress("uls", 100, done=1)
    clock.now = 4.0
    assert bar._still() == "uls: 1 of 100 rounds done; round 2 running for 4 s"
    for rounds in range(1, 98):
        clock.now = 5.0 * rounds
        bar.advance()
        if rounds == 4:
            clock.now += 2.0
            done = "uls: 5 of 100 rounds done; round 6 running for 2 s"
            assert bar._still() == f"{done}; about 7 min 53 s left"
    done = "98 of 100 rounds done; round 99 running for 0 s"
    assert bar._still().endswith(f"{done}; about 10.0 s left")


def test_a_wait_says_that_it_goes_on_and_ends_with_the_work(
    caplog: Log, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(terminal, "_QUIET", 0.01)
    with caplog.at_level(logging.INFO), status_when_slow("planning"):
        while len(caplog.records) < 2:
            time.sleep(0.001)
    said = [record.message for record in caplog.records]
    assert set(said) <= {f"planning: {seconds} seconds so far" for seconds in range(60)}
    threads = [thread.name for thread in threading.enumerate()]
    with pytest.raises(ValueError, match="no plan"), status_when_slow("planning"):
        raise ValueError("no plan")
    assert [thread.name for thread in threading.enumerate()] == threads


def test_what_a_stream_cannot_write_ends_no_command(tmp_path: Path) -> None:
    """Else a run would end with a traceback, after its last round, and without its promise."""
    command = [sys.executable, "-m", "fedsim.cli.main", "account", "uls", "--rounds", "9"]
    options = ["--sampling-probability", "0.1", "--delta", "1e-5", "--noise-multiplier", "1"]
    done = subprocess.run(
        [*command, *options],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "latin-1", "FEDSIM_CACHE": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"Every user has (\\u03b5 = ")

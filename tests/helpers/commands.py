"""The command line inside this process: what is not about processes need not wait for torch."""

from __future__ import annotations

import io
import json
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fedsim.cli.main import main
from tests.conftest import small_config


@dataclass(frozen=True)
class Done:
    """What a shell sees of a command that ended."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def complaint(self) -> str:
        """The one message of a command that refused its input, without what was logged before."""
        assert self.returncode == 2, self.stderr
        assert self.stdout == ""
        assert "Traceback" not in self.stderr
        _, *messages = f"\n{self.stderr}".split("\nError: ")
        assert len(messages) == 1, self.stderr
        return f"Error: {messages[0]}"


def fedsim(*arguments: str | Path, folder: Path | None = None) -> Done:
    """Run `fedsim` with arguments, in `folder`, as the installed script would.

    Its log goes to its standard error and to nobody else; no level that it sets stays set.
    """
    out, err = io.StringIO(), io.StringIO()
    with (
        patch("sys.argv", ["fedsim", *map(str, arguments)]),
        patch.dict(os.environ, {"COLUMNS": "200"}),
        chdir(folder or Path.cwd()),
        _own_logging(),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            status = ended.code
    assert isinstance(status, int)
    return Done(status, out.getvalue(), err.getvalue())


def fedsim_ok(*arguments: str | Path, folder: Path | None = None) -> Done:
    """Run `fedsim`, which must succeed."""
    done = fedsim(*arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    return done


def fedsim_json(*arguments: str | Path) -> dict[str, Any]:
    """Run `fedsim` with `--json` and return the one object that it prints."""
    found: dict[str, Any] = json.loads(fedsim_ok(*arguments, "--json").stdout)
    return found


def page_command(line: str, folder: Path) -> str:
    """Return what a line of a page's shell block prints: `fedsim` in this process, others by sh."""
    words = shlex.split(os.path.expandvars(line))
    if words[0] == "fedsim":
        return fedsim_ok(*words[1:], folder=folder).stdout
    command = ["sh", "-e", "-c", line]
    scripts = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": scripts}
    other = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert other.returncode == 0, other.stdout + other.stderr
    return other.stdout


def write_config(path: Path, source: Path, **sections: dict[str, Any]) -> Path:
    """Write the small config on `source`, with sections laid over it, and return where."""
    path.write_text(small_config(source, **sections).to_toml(), encoding="utf-8")
    return path


@contextmanager
def _own_logging() -> Iterator[None]:
    """Let the command set up logging as in a process that has none yet."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    ours = logging.getLogger("fedsim")
    own_level = ours.level
    root.handlers[:] = []
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        ours.setLevel(own_level)

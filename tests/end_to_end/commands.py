"""The command line inside this process: what is not about processes need not wait for torch."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from fedsim.cli.main import main

_LOGGERS = ("fedsim", "strategies", "clients", "experiments")


@dataclass(frozen=True)
class Done:
    """What a shell sees of a command that ended."""

    returncode: int
    stdout: str
    stderr: str


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


@contextmanager
def _own_logging() -> Iterator[None]:
    """Let the command set up logging as in a process that has none yet."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    root.handlers[:] = []
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for name, before in levels.items():
            logging.getLogger(name).setLevel(before)

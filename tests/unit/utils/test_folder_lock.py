"""A folder has one writer; nothing is left of the lock, nor of a folder that nothing came into."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedsim.errors import ConfigError
from fedsim.runner.folder import RunFolder
from fedsim.utils.locks import LOCK, sole_writer

TAKEN = "another process is writing to it; wait until that ends, or name another folder"


def test_the_second_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with sole_writer(tmp_path), pytest.raises(ConfigError, match=TAKEN), sole_writer(tmp_path):
        raise AssertionError("both have it")
    with sole_writer(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_nothing_came_into_is_gone(tmp_path: Path) -> None:
    out = tmp_path / "mine"
    with pytest.raises(ArithmeticError), sole_writer(out):
        raise ArithmeticError
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="full"), sole_writer(out):
        (out / "config.toml").touch()
        raise OSError("the disk is full")  # of the run, not of the lock
    assert [path.name for path in out.iterdir()] == ["config.toml"]


def test_what_a_killed_writer_leaves_is_no_lock(tmp_path: Path) -> None:
    killed = (
        "import os, sys; from pathlib import Path; from fedsim.utils.locks import sole_writer\n"
        "with sole_writer(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", killed, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]
    RunFolder(tmp_path).check_fresh()
    with sole_writer(tmp_path):
        pass

"""A run folder that was begun and cut off at once can be begun again; anybody else's cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.errors import ConfigError
from fedsim.runner.folder import RunFolder
from tests.conftest import small_config


def test_what_a_kill_in_the_first_write_leaves_is_fresh(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / ".config.toml.123.tmp").write_text("[dat")
    folder.check_fresh()
    folder.begin(small_config(Path("speeches.jsonl")), {}, 0)
    assert folder.checkpoints.is_dir()
    with pytest.raises(ConfigError, match="already there"):
        folder.check_fresh()


@pytest.mark.parametrize("name", ["checkpoints", "notes.txt", ".hidden", ".config.toml"])
def test_a_folder_with_anything_else_is_taken(tmp_path: Path, name: str) -> None:
    RunFolder(tmp_path / "absent").check_fresh()
    RunFolder(tmp_path).check_fresh()  # empty
    (tmp_path / name).touch()
    for taken, why in ((tmp_path, "holds files, and nothing"), (tmp_path / name, "a file")):
        with pytest.raises(ConfigError, match=why):
            RunFolder(taken).check_fresh()


def test_the_config_is_there_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between two writes must leave what can be taken up, or nothing."""

    def killed(path: Path, **_: object) -> None:
        raise KeyboardInterrupt(path)

    monkeypatch.setattr(Path, "mkdir", killed)
    with pytest.raises(KeyboardInterrupt):
        RunFolder(tmp_path / "run").begin(small_config(Path("speeches.jsonl")), {}, 0)
    monkeypatch.undo()
    folder = RunFolder(tmp_path / "run")
    folder.check_fresh()
    folder.begin(small_config(Path("speeches.jsonl")), {}, 0)

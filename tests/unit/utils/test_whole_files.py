"""What a full disk or a kill leaves: the file or folder before, and nothing beside it."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError

from fedsim.config import parse_config
from fedsim.materials import Materials
from fedsim.runner.folder import RunFolder
from fedsim.runner.saved_model import save_model
from fedsim.utils.files import disk_message, naming, write_atomically


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")  # as a write raises it: without a name


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_write_without_room_names_the_file_and_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.json"
    write_atomically(path, "old")
    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(OSError, match="No space left") as raised:
        write_atomically(path, "new")
    assert raised.value.filename == str(path)
    assert (path.read_text(), names(tmp_path)) == ("old", ["ledger.json"])


def test_a_file_keeps_its_rights_and_a_private_one_is_never_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group may write a shared ledger; a kill before the rename must not show a seed."""
    shared, seed, modes = tmp_path / "shared.json", tmp_path / "seed.json", list[int]()
    shared.touch()
    shared.chmod(0o664)
    write_atomically(shared, "{}")
    assert shared.stat().st_mode & 0o777 == 0o664
    real: Callable[..., None] = os.fsync

    def watched(file: int) -> None:
        modes.append(os.fstat(file).st_mode & 0o777)
        real(file)

    monkeypatch.setattr("os.fsync", watched)
    write_atomically(seed, "{}", private=True)
    assert (modes[0], seed.stat().st_mode & 0o777) == (0o600, 0o600)


def test_a_model_is_there_whole_or_not_at_all(
    materials: Materials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = materials.model, tmp_path / "model"
    start = model.initial_parameters()
    stages: list[list[str]] = []
    real: Callable[..., None] = os.fsync

    def watched(file: int) -> None:
        stages.append(names(tmp_path))
        real(file)

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", watched)
        save_model(model, start, folder)
    (hidden,) = stages[0]  # until all of it is on the disk
    assert re.fullmatch(rf"\.model\.{os.getpid()}\.[0-9a-f]{{8}}\.tmp", hidden)
    assert stages[-1] == ["model"]
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", no_space)
        with pytest.raises(OSError, match=r"No space left.*model'"):
            save_model(model, {name: value + 1 for name, value in start.items()}, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert names(tmp_path) == ["model"]
    save_model(model, {name: value + 1 for name, value in start.items()}, folder)
    assert (folder / "model.safetensors").read_bytes() != before["model.safetensors"]
    assert names(tmp_path) == ["model"]


def test_what_killed_runs_left_is_removed_when_a_run_is_taken_up(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin(parse_config({}), {}, 0)
    (folder.checkpoints / ".round-000002.safetensors.123.tmp").write_bytes(b"half")
    (tmp_path / ".model.123.tmp").mkdir()
    (tmp_path / ".model.123.tmp" / "config.json").write_text("{}")
    (tmp_path / ".notes").write_text("mine")
    folder.begin(parse_config({}), {}, 0)
    assert names(tmp_path) == [".notes", "checkpoints", "config.toml", "run.json"]
    assert not names(folder.checkpoints)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EROFS, "Read-only file system"),
        SafetensorError("Error while serializing: I/O error: Read-only file system (os error 30)"),
    ],
)
def test_what_the_disk_refuses_is_one_line_with_a_name(error: Exception) -> None:
    with pytest.raises(OSError, match="Read-only") as raised, naming(Path("run/model")):
        raise error
    message = disk_message(raised.value)
    assert message is not None
    assert message.startswith("run/model: cannot be written: Read-only file system; ")

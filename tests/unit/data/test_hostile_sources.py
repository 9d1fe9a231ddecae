"""Sources that lead elsewhere, run code or would report home."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest

from fedsim.data.config import DataConfig
from fedsim.errors import ConfigError
from tests.conftest import Patch, write_rows
from tests.unit.data.data_samples import pairs

ROWS = [{"author": "a", "body": "one"}, {"author": "b", "body": "two"}]


def read(source: Path) -> list[tuple[str | None, str | None]]:
    config = DataConfig(source=str(source), user_column="author", text_column="body")
    return pairs(config)


def saved(folder: Path, rows: list[dict[str, str]]) -> Path:
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(rows).save_to_disk(folder)
    return folder


def edit(path: Path, **changes: Any) -> None:  # noqa: ANN401
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content | changes), encoding="utf-8")


@pytest.mark.parametrize("absolute", [True, False])
def test_a_saved_set_that_names_a_file_elsewhere(tmp_path: Path, absolute: bool) -> None:
    secret = saved(tmp_path / "secret", [{"author": "x", "body": "secret"}])
    folder = saved(tmp_path / "set", ROWS)
    assert read(folder) == [("a", "one"), ("b", "two")]
    (file,) = secret.glob("*.arrow")
    name = str(file) if absolute else f"../secret/{file.name}"
    edit(folder / "state.json", _data_files=[{"filename": name}])
    with pytest.raises(ConfigError, match="is not the name of a file in the folder"):
        read(folder)


def test_a_saved_set_that_names_a_split_elsewhere(tmp_path: Path) -> None:
    saved(tmp_path / "secret", ROWS)
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(tmp_path / "set")
    assert len(read(tmp_path / "set")) == 2
    edit(tmp_path / "set" / "dataset_dict.json", splits=["train", "../secret"])
    with pytest.raises(ConfigError, match=r"'\.\./secret' is not the name of a file"):
        read(tmp_path / "set")


class Payload:
    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.mkdir, (Path("unpickled"),)


@pytest.mark.parametrize("name", ["load.py", "rows.pkl", "folder", "rows.jsonl", "rows.parquet"])
def test_scripts_and_pickles_are_no_texts(tmp_path: Path, monkeypatch: Patch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
        path = path / "folder.py"
    if path.suffix == ".py":
        path.write_text('from pathlib import Path\nPath("executed").mkdir()\n', encoding="utf-8")
    else:
        path.write_bytes(pickle.dumps(Payload()))
    with pytest.raises(ConfigError, match=r"data\.source"):
        read(tmp_path / name)
    assert [found.name for found in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet", "rows.arrow", "folder"])
def test_a_pointer_of_git_lfs_is_no_data(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
        write_rows(path / "a.jsonl", ROWS)
        path = path / "b.jsonl"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n")
    with pytest.raises(ConfigError, match=rf"{path.name} is a git-LFS pointer: run git lfs pull$"):
        read(tmp_path / name)


def test_reading_a_local_file_asks_no_server(tmp_path: Path, monkeypatch: Patch) -> None:
    """`datasets` counts loads, also of files on this machine, unless it is told not to."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    asked: list[str] = []

    def session() -> object:
        asked.append("a server")
        raise RuntimeError("no session in a test")

    monkeypatch.setattr(sys.modules["datasets.load"], "get_session", session)
    path = tmp_path / "rows.jsonl"
    write_rows(path, ROWS)
    monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", True)
    datasets.load_dataset("json", data_files=str(path), streaming=True)
    assert asked == ["a server"]  # what the setting is for
    assert len(read(path)) == 2
    assert asked == ["a server"]

"""Dirty inputs: one clear message, or counted as dropped."""

import json
from pathlib import Path

import pytest

from fedsim.data.building.tokenise import LONG_TEXT
from fedsim.data.config import DataConfig
from fedsim.data.reading import records
from fedsim.errors import ConfigError
from tests.unit.data.data_samples import build, pairs


def _config(path: Path, content: bytes) -> DataConfig:
    path.write_bytes(content)
    return DataConfig(source=str(path))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.csv", b"speaker,text\nann,a\nbob,caf\xe9 noir\n"),
        ("rows.jsonl", b'{"speaker":"ann","text":"a"}\n\n{"speaker":"bob","text":"caf\xe9 noir"}'),
    ],
)
def test_bytes_that_are_not_utf8(tmp_path: Path, name: str, content: bytes) -> None:
    with pytest.raises(ConfigError, match=rf"^data\.source = .*: {name} is not UTF-8; convert"):
        pairs(_config(tmp_path / name, content))


def test_null_users_are_dropped_and_counted(tmp_path: Path) -> None:
    rows = b'{"speaker":null,"text":"a"}\n{"text":"b"}\n{"speaker":"","text":"c"}\n'
    config = _config(tmp_path / "rows.jsonl", rows + b'{"speaker":"ann","text":"d"}\n')
    store = build(records(config), tmp_path / "store")
    assert store.manifest["dropped"] == {"null user": 3}
    assert store.num_examples == 1


def test_a_user_of_several_types_is_one_user(tmp_path: Path) -> None:
    rows = [{"speaker": user, "text": "x"} for user in (5, "5", 5.0, None, "ann")]
    content = "\n".join(map(json.dumps, rows)).encode()
    store = build(records(_config(tmp_path / "rows.jsonl", content)), tmp_path / "store")
    assert (store.path / "users.jsonl").read_text().splitlines() == ['"5"', '"ann"']
    assert store.user_offsets.tolist() == [0, 3, 4]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet", "a.arrow"])
def test_an_empty_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^data\.source = '.*{name}': holds no rows$"):
        pairs(_config(tmp_path / name, b""))


def test_a_line_of_100_megabytes(tmp_path: Path) -> None:
    """It is read and left out: tokenising it would take a hundred times as much memory."""
    rows = [{"speaker": "ann", "text": text} for text in ("a", "word " * 20_000_000, "b")]
    config = _config(tmp_path / "rows.jsonl", "\n".join(map(json.dumps, rows)).encode())
    del rows
    store = build(records(config), tmp_path / "store")
    assert store.manifest["dropped"] == {LONG_TEXT: 1}
    assert store.num_examples == 2


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        (
            "rows.jsonl",
            b'{"speaker":"ann","text":1.5}\n{"speaker":"bob","text":2.5}',
            "row 1: holds a float",
        ),
        ("rows.csv", b"speaker,text\nann,1\nbob,\neve,-2.5e3\n", "holds only numbers"),
    ],
)
def test_a_text_column_of_numbers(tmp_path: Path, name: str, content: bytes, what: str) -> None:
    expected = rf"^data\.text_column = 'text': {what}; wanted: strings$"
    with pytest.raises(ConfigError, match=expected):
        pairs(_config(tmp_path / name, content))


def test_a_number_among_texts_is_a_text(tmp_path: Path) -> None:
    config = _config(tmp_path / "rows.csv", b"speaker,text\nann,1\nbob,hi\n")
    assert pairs(config) == [("ann", "1"), ("bob", "hi")]

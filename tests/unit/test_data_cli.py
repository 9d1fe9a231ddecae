"""`fedsim data build` and `inspect`, with the model replaced by bytes."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedsim.cli.data import app
from fedsim.config import ModelConfig
from fedsim.data.store import TokenStore
from fedsim.errors import ConfigError
from tests.unit.data_samples import ByteModel, build

LOADED: list[tuple[ModelConfig, int]] = []


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    def load_model(config: ModelConfig, *, sequence_length: int) -> ByteModel:
        LOADED.append((config, sequence_length))
        return ByteModel()

    monkeypatch.setattr("fedsim.materials.load_model", load_model)
    source = tmp_path / "rows.csv"
    source.write_text("author,body\nann,hello\nann,again\nbob,\neve,hi\n")
    columns = ["--user-column", "author", "--text-column", "body"]
    return ["build", str(source), *columns, "--tokenizer", "bytes", "--out", str(tmp_path / "out")]


def _run(arguments: list[str]) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_build_makes_a_store_and_says_what_is_in_it(arguments: list[str], tmp_path: Path) -> None:
    printed = _run([*arguments, "--sequence-length", "6"])
    store = TokenStore.open(tmp_path / "out")
    assert (store.num_users, store.num_examples) == (2, 5)
    assert LOADED[-1] == (ModelConfig(name_or_path="bytes"), 6)
    assert "null text: 1" in printed
    assert "computed on private data" in printed


def test_a_built_in_model_is_not_pre_trained_for_its_tokenizer(arguments: list[str]) -> None:
    _run([*arguments, "--tokenizer", "tiny-gpt", "--cutting", "join"])
    assert LOADED[-1][0] == ModelConfig(name_or_path="tiny-gpt", pretraining_steps=0)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--sequence-length", "1"], "data.sequence_length = 1"),
        (["--user-column", "who"], "data.user_column = 'who': no such column"),
        (["--out", "."], "--out '.': exists"),
    ],
)
def test_wrong_input_is_a_config_error(
    arguments: list[str], extra: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        _run([*arguments, *extra])


def test_a_place_where_nothing_can_be_made(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--out .*cannot be made"):
        _run([*arguments, "--out", str(tmp_path / "rows.csv" / "store")])


def test_inspect_as_json_is_one_object(tmp_path: Path) -> None:
    sizes = [1, 2, 3, 4, 7, 8]
    records = [(f"user {size}", "x") for size in sizes for _ in range(size)]
    build([*records, (None, "x")], tmp_path / "store")
    summary: dict[str, Any] = json.loads(_run(["inspect", str(tmp_path / "store"), "--json"]))
    assert (summary["users"], summary["examples"], summary["tokens"]) == (6, 25, 75)
    spread = {"min": 1, "median": 3.5, "mean": 25 / 6, "max": 8}
    assert summary["examples_per_user"] == pytest.approx(spread)
    found = [(bucket["from"], bucket["to"], bucket["users"]) for bucket in summary["histogram"]]
    assert found == [(1, 1, 1), (2, 3, 2), (4, 7, 2), (8, 15, 1)]
    assert summary["dropped"] == {"null user": 1}
    assert "private data" in summary["note"]


def test_inspect_for_people(tmp_path: Path) -> None:
    build([("ann", "x")], tmp_path / "store")
    printed = _run(["inspect", str(tmp_path / "store")])
    assert "█" in printed
    assert "computed on private data" in printed


def test_inspect_something_else(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a token store"):
        _run(["inspect", str(tmp_path)])

"""`fedsim data build` and `inspect`, with the model replaced by bytes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedsim.cli.data import app
from fedsim.config import ModelConfig
from fedsim.data.config import recipe_names
from fedsim.data.store import TokenStore
from fedsim.errors import ConfigError
from tests.unit.data.data_samples import ByteModel, build

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
    assert re.search(r"null text\W+1\b", printed)
    assert "computed on private data" in printed


def test_a_built_in_model_is_not_pre_trained_for_its_tokenizer(arguments: list[str]) -> None:
    _run([*arguments, "--tokenizer", "tiny-gpt", "--set", "data.cutting=join"])
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
    assert summary["mean_examples_per_user"] == pytest.approx(25 / 6)
    assert summary["quantiles"]["examples_per_user"] == {
        "0": 1,
        "0.05": 1,
        "0.25": 2,
        "0.5": 3,
        "0.75": 7,
        "0.95": 8,
        "1": 8,
    }
    assert set(summary["quantiles"]["tokens_per_example"].values()) == {3}
    assert summary["quantiles"]["tokens_per_user"]["1"] == 24
    assert summary["dropped"] == {"null user": 1}
    assert "private data" in summary["note"]


def test_the_group_size_of_the_heuristic_is_the_median_user(tmp_path: Path) -> None:
    records = [(f"user {size}", "x") for size in (1, 2, 5, 40) for _ in range(size)]
    build(records, tmp_path / "store")
    found = json.loads(_run(["inspect", str(tmp_path / "store"), "--json"]))["group_size"]
    assert found["els_median"] == 4  # between 2 and 5, rounded up
    assert found["els_examples_kept"] == 1 + 2 + 4 + 4
    assert found["els_part_kept"] == pytest.approx(11 / 48)
    assert "private data, not differentially private" in found["note"]


def test_a_preparation_on_the_command_line(arguments: list[str], tmp_path: Path) -> None:
    steps = '[{ step = "min-examples", count = 2 }, { step = "text-length", maximum = 5 }]'
    _run([*arguments, "--set", f"data.preparation={steps}"])
    assert (tmp_path / "out" / "users.jsonl").read_text() == '"ann"\n'


def test_columns_are_given_or_a_recipe_is(arguments: list[str]) -> None:
    source = arguments[1]
    rest = arguments[-4:]
    with pytest.raises(ConfigError, match="give --user-column, or --recipe"):
        _run(["build", source, *rest])
    with pytest.raises(ConfigError, match=r"data\.user_column = 'bid': no such column"):
        _run(["build", source, "--recipe", "booksum", *rest])


def test_the_list_of_recipes() -> None:
    printed = _run(["recipes"])
    found = json.loads(_run(["recipes", "--json"]))
    assert list(found) == recipe_names()
    assert all(f"\n{name} (" in f"\n{printed}" for name in found)
    assert found["cc-news"]["data"]["source"] == "vblagoje/cc_news"


def test_inspect_shows_names_that_may_not_be_one_person_each(tmp_path: Path) -> None:
    names = ("Ann", "ann", "Jos\u00e9", "Jose\u0301", "nan", "who", "1.23457E+17", "bob", "\ud800")
    owned = [("bob", "x", ("Hub <hub@x.org>", "HUB@x.org"))]  # who wrote nothing
    records = [*((name, "x", ()) for name in names), *owned]
    build(records, tmp_path / "store", user_column="who", co_owned=True)
    printed = " ".join(_run(["inspect", str(tmp_path / "store")]).split())
    assert "e-mail address: 6 names, such as 'Ann' = 'ann', 'Jos\\xe9' = 'Jose\\u0301', " in printed
    assert "'Hub <hub@x.org>' = 'HUB@x.org'; if two" in printed
    assert 'add { step = "user-name", transform = "one-spelling" }' in printed
    found = json.loads(_run(["inspect", str(tmp_path / "store"), "--json"]))["doubtful_names"]
    assert {each["kind"]: (each["num_names"], each["examples"]) for each in found[1:]} == {
        "missing": (1, ["'nan'"]),
        "header": (1, ["'who'"]),
        "rounded": (1, ["'1.23457E+17'"]),
    }
    build([("ann", "x"), ("bob", "x")], tmp_path / "other")
    plain = json.loads(_run(["inspect", str(tmp_path / "other"), "--json"]))
    assert plain["doubtful_names"] == []


def test_inspect_something_else(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a token store"):
        _run(["inspect", str(tmp_path)])

"""From Python: dictionaries as configs, data and networks that one holds, and what comes back."""

from __future__ import annotations

import json
import os
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import pandas
import pytest
import torch
from flwr_datasets.partitioner import DirichletPartitioner, NaturalIdPartitioner
from transformers import AutoModelForCausalLM, AutoTokenizer

import fedsim
from fedsim.accounting.earlier_training import earlier_training
from fedsim.accounting.promise import verify
from fedsim.config import Config
from fedsim.data.reading import records
from fedsim.errors import ConfigError
from fedsim.report.schema import load_metrics
from fedsim.runner.given import with_given
from tests.conftest import Capture, Patch, small_config
from tests.helpers.light import light_config


def rows_of(speeches: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in speeches.read_text(encoding="utf-8").splitlines()]


def settings(**data: object) -> dict[str, Any]:
    """A config as people write it in a notebook."""
    return written(small_config(Path("unused")), data)


def light(speeches: Path, **data: object) -> dict[str, Any]:
    """The same on a network of one layer, for what is run."""
    return written(light_config(speeches), data)


def written(config: Config, data: dict[str, object]) -> dict[str, Any]:
    raw = config.model_dump(exclude_none=True)
    del raw["data"]["source"]
    raw["data"] |= data
    return dict(raw)


@pytest.fixture(scope="module")
def finished(speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> fedsim.Run:
    rows = datasets.Dataset.from_list(rows_of(speeches))
    return fedsim.run(light(speeches), tmp_path_factory.mktemp("python") / "run", data=rows)


def test_what_comes_back_is_the_run(finished: fedsim.Run, tmp_path: Path) -> None:
    assert finished.report == fedsim.load_report(finished) == fedsim.load_report(finished.path)
    assert finished.metrics == fedsim.load_metrics(finished)
    assert finished.epsilon == finished.report.privacy.epsilon
    assert finished.statement.startswith("Simulated: with secret randomness ")
    assert os.fspath(finished) == str(finished.path)
    assert finished.adapter is None
    ids = finished.tokenizer("the king shall ride", return_tensors="pt")["input_ids"]
    assert torch.isfinite(finished.model(ids).logits).all()
    assert finished.model.generate(ids, max_new_tokens=3).shape[1] == ids.shape[1] + 3  # type: ignore[operator]


def test_what_is_public_is_listed_and_a_comparison_takes_names(
    finished: fedsim.Run, tmp_path: Path
) -> None:
    assert set(fedsim.__all__) <= set(dir(fedsim))
    compared = fedsim.compare([str(finished.path)], str(tmp_path / "compared"))
    assert len(compared.runs) == 1
    with pytest.raises(ConfigError, match=r"^compare: sources = .*: give a list$"):
        fedsim.compare(str(finished.path), tmp_path / "other")
    with pytest.raises(ConfigError, match="is a run folder; give the comparison another"):
        fedsim.compare([finished.path], finished.path)


@pytest.mark.parametrize("kind", ["dataset", "frame", "list", "config", "file"])
def test_however_it_is_given_it_is_the_same_run(
    kind: str, finished: fedsim.Run, speeches: Path, tmp_path: Path
) -> None:
    rows = rows_of(speeches)
    config: Any = light(speeches)
    data: Any = rows
    if kind == "dataset":
        data = datasets.Dataset.from_list(rows)
    elif kind == "frame":
        data = pandas.DataFrame(rows)
    elif kind == "config":
        config = light_config(speeches)
    elif kind == "file":
        config = tmp_path / "config.toml"
        config.write_text(light_config(speeches).to_toml(), encoding="utf-8")
    run = fedsim.run(config, tmp_path / "run", data=data)
    assert run.statement == finished.statement
    assert run.report.data.users == finished.report.data.users
    if kind == "dataset":  # other files are other sources, with noise of their own
        assert run.report.utility == finished.report.utility


def test_a_new_folder_each_time(speeches: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    config = light_config(speeches, strategy={"rounds": 1})
    paths = [fedsim.run(config).path for _ in range(2)]
    assert paths == [Path("runs/run-001"), Path("runs/run-002")]


def test_a_network_that_one_holds(
    finished: fedsim.Run, speeches: Path, tmp_path: Path, capsys: Capture
) -> None:
    folder = finished.path / "model"
    held = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    before = {name: value.clone() for name, value in held.state_dict().items()}
    config = light(speeches, source=str(speeches))
    config["model"] = {"trainable": "ln_"}
    capsys.readouterr()
    run = fedsim.run(config, tmp_path / "given", model=held, tokenizer=tokenizer)
    assert (type(run.model), type(run.tokenizer)) == (type(held), type(tokenizer))
    said = capsys.readouterr().err
    assert not [bar for bar in ("Writing", "Loading", "%|") if bar in said]
    config["model"]["name_or_path"] = str(folder)
    named = fedsim.run(config, tmp_path / "named")
    assert run.report.utility.initial == named.report.utility.initial
    assert run.report.utility.final.loss != run.report.utility.initial.loss
    assert all(torch.equal(value, before[name]) for name, value in held.state_dict().items())
    resumed = fedsim.run(run.path / "config.toml", run.path, resume=True)
    assert resumed.report.utility == run.report.utility


def fetched(run: fedsim.Run, hub: Path, monkeypatch: Patch) -> Path:
    """Return the folder of a run's model, org/x, in the cache of a hub that is not reached."""
    entry = hub / "models--org--x"
    shutil.copytree(run.path / "model", entry / "snapshots" / ("0" * 40))
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text("0" * 40)
    for module in ("huggingface_hub.constants", "transformers.utils.hub"):
        monkeypatch.setattr(f"{module}.HF_HUB_CACHE", str(hub), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return entry


def test_a_promise_on_the_hub_goes_with_what_is_opened_from_there(
    finished: fedsim.Run, speeches: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    """From the hub's cache, as a machine without a network has it: by name, and given as opened."""
    fetched(finished, tmp_path / "hub", monkeypatch)
    config = light(speeches, source=str(speeches))
    config["model"] = {"trainable": "ln_", "name_or_path": "org/x"}
    named = fedsim.run(config, tmp_path / "named")
    held = AutoModelForCausalLM.from_pretrained("org/x")
    assert held.config._name_or_path == "org/x"
    del config["model"]["name_or_path"]
    tokenizer = AutoTokenizer.from_pretrained("org/x")
    given = fedsim.run(config, tmp_path / "given", model=held, tokenizer=tokenizer)
    for run, name in ((named, "org/x"), (given, "x")):
        said = " ".join(run.report.privacy.assumptions)
        promised = (
            f"{name!r} has its own privacy statement; for people in both data sets the two ε and "
            "the two δ add up"
        )
        assert f"{promised}: {finished.report.privacy.statement}" in said
        assert "not what is there" not in said


def origin_of(start: str) -> str:
    """Return what a report would say of this starting point."""
    return " ".join(earlier_training(start))


def test_a_plug_ins_model_is_of_unknown_text(monkeypatch: Patch) -> None:
    assert origin_of("tiny-gpt") == ""
    monkeypatch.setattr("fedsim.accounting.earlier_training.names", lambda _kind: ["theirs"])
    assert origin_of("theirs") == (
        "'theirs' is a plug-in's model: fedsim does not know its training text."
    )


def users_of(config: fedsim.Config) -> list[str]:
    return [record.user for record in records(config.data)]


def test_partitions_of_flower_datasets_are_users_by_their_own_names(
    speeches: Path, tmp_path: Path
) -> None:
    """A user more in front, and theirs are the names that they had."""
    rows, newcomer = rows_of(speeches), {"author": "aa-new", "body": "the king"}
    named = []
    for given in (rows, [newcomer, *rows]):
        natural = NaturalIdPartitioner(partition_by="author")
        natural.dataset = datasets.Dataset.from_list(given)
        named.append(sorted(map(str, users_of(with_given(settings(), data=natural)))))
    assert named[0] == sorted(row["author"] for row in rows)
    assert named[1] == ["aa-new", *named[0]]
    run = fedsim.run(light(speeches), tmp_path / "run", data=natural)
    assert run.report.data.users == 25
    assert not any("Hypothetical" in text for text in run.report.privacy.assumptions)


def test_users_that_a_partitioner_makes_up_are_called_hypothetical(
    speeches: Path, tmp_path: Path
) -> None:
    drawn = DirichletPartitioner(
        num_partitions=9, partition_by="author", alpha=0.5, min_partition_size=1
    )
    drawn.dataset = datasets.Dataset.from_list(rows_of(speeches))
    run = fedsim.run(light(speeches), tmp_path / "run", data=drawn)
    assert run.report.data.users == 9
    card = (run.path / "model" / "README.md").read_text(encoding="utf-8")
    assert "Hypothetical users: a DirichletPartitioner divided all rows" in card
    assert "gives every hypothetical user (ε = " in card
    assert verify(run.path / "model")["unit"] == "hypothetical user"
    caption = str(load_metrics(run.path)[-1].epsilon_terms)
    assert "for one hypothetical user, " in caption
    raw = light(speeches)
    raw["model"] = {"trainable": "ln_"}
    again = fedsim.run(
        raw, tmp_path / "again", data=drawn, model=run.model, tokenizer=run.tokenizer
    )
    assert any(run.report.privacy.statement in said for said in again.report.privacy.assumptions)


def test_one_users_name_or_number_does_not_change_how_others_are_written() -> None:
    rows: list[dict[str, Any]] = [{"author": 7, "body": "a"}, {"author": 1.5, "body": "b"}]
    for data in (rows, pandas.DataFrame(rows), pandas.DataFrame(rows, dtype=object)):
        assert users_of(with_given(settings(), data=data)) == ["7", "1.5"]
    for names in (["bob"], ["alice", "bob"]):
        given = labelled(names, (names.index("bob"), "a"))
        assert users_of(with_given(settings(), data=given)) == ["bob"]


def labelled(names: list[str], *rows: tuple[int, str]) -> datasets.Dataset:
    """A data set of users that are classes, each row with its class's place among the names."""
    features = {"author": datasets.ClassLabel(names=names), "body": datasets.Value("string")}
    rows_ = [{"author": code, "body": text} for code, text in rows]
    return datasets.Dataset.from_list(rows_, features=datasets.Features(features))


def test_what_cannot_be_read_is_named(finished: fedsim.Run, speeches: Path, tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list(rows_of(speeches))
    model = finished.model
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"config": 3}, "config: an int; give a TOML file's path, a dictionary or a Config"),
        ({"data": datasets.DatasetDict(train=rows)}, "data: a DatasetDict; give a datasets.Data"),
        ({"data": rows.to_iterable_dataset()}, "data: an IterableDataset; .*from_generator"),
        ({"data": [{"author": "a", "body": Decimal(1)}]}, "data: row 0: .*Decimal.*strings and"),
        ({"data": [("a", "text")]}, "data: row 0 is a tuple; give dictionaries"),
        ({"data": []}, "data: holds no rows"),
        ({"data": rows.select([])}, "data: holds no rows"),
        ({"data": pandas.DataFrame({"author": [], "body": []})}, "data: holds no rows"),
        ({"data": "rows.csv"}, "data: a str; .*a path belongs in data.source"),
        ({"model": model}, "model, tokenizer: give both or neither"),
        ({"model": torch.nn.Linear(1, 1), "tokenizer": finished.tokenizer}, "model: a Linear; "),
        (
            {"model": model, "tokenizer": "gpt2"},
            "tokenizer: a str; give a tokenizer of transformers",
        ),
        ({"config": {"data": 3}, "data": rows}, "data"),
        ({"config": {"strategy": {"roundz": 3}}}, "strategy.roundz"),
        ({"config": tmp_path / "none.toml"}, "none.toml"),
    ]
    for given, message in wrong:
        with pytest.raises(ConfigError, match=message):
            fedsim.run(**{"config": light(speeches), "out": tmp_path / "run", **given})
    assert not (tmp_path / "run").exists()

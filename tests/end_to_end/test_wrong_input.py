"""Whatever is wrong with the input: exit status 2, one message that helps, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.cli.main import main
from tests.conftest import small_config

EPSILON = {"epsilon": 4.0, "noise_multiplier": None}


@pytest.fixture
def nulls(tmp_path: Path) -> Path:
    path = tmp_path / "nulls.jsonl"
    path.write_text('{"author": null, "body": "to be or not"}\n' * 3, encoding="utf-8")
    return path


def run(
    config: Path, out: Path, monkeypatch: pytest.MonkeyPatch, *options: str
) -> int | str | None:
    monkeypatch.setattr("sys.argv", ["fedsim", "run", str(config), "--out", str(out), *options])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("strategy.cohort_siz=5", "strategy.cohort_siz: unknown key; did you mean 'cohort_size'?"),
        ("wombat=1", "wombat: unknown key; known keys: data, executor"),
        ("privacy.epsilon=3.0", "epsilon = 3.0 together with noise_multiplier = 1.0"),
        ("privacy.delta=2", "privacy.delta = 2"),
        ("privacy.accountant='moment'", "accountant = 'moment': unknown; known:"),
        ("strategy.cohort_size=500", "strategy.cohort_size = 500: larger than the population of"),
        ("strategy.name='ulss'", "strategy.name = 'ulss': did you mean 'uls'?"),
        ("strategy.rounds=0", "strategy.rounds = 0"),
        ("strategy.rounds=many", "strategy.rounds = 'many'"),
        ("strategy.clip.l2_clip_norm=-1", "strategy.clip.l2_clip_norm = -1"),
        ("strategy.estimator.kind='clipped'", "needs min_weight"),
        ("strategy.batch_size=5", "strategy.batch_size = 5.0: not used by strategy 'uls'"),
        ("data.source='nowhere.jsonl'", "nowhere.jsonl"),
        ("data.user_column='speaker'", "data.user_column = 'speaker'"),
        ("data.text_column='speech'", "data.text_column = 'speech'"),
        ("data.sequence_length=1", "data.sequence_length = 1"),
        ("data.sequence_length=4096", "4096"),
        ("model.name_or_path='nowhere/model'", "model.name_or_path = 'nowhere/model'"),
        ("model.dropout=1.0", "model.dropout = 1.0"),
        ("model.trainable='no_such_parameter'", "no_such_parameter"),
        ("executor.grid='rey'", "executor.grid = 'rey'"),
        ("executor.workers=2", 'needs grid = "ray"'),
        ("executor.engine='quick'", "executor.engine = 'quick'"),
        ("executor.precision='float16'", "executor.precision = 'float16'"),
        ("strategy.local.task='sgd'", "strategy.local"),
        ("seed", "--set 'seed': expected key.path=value"),
    ],
)
def test_one_message_and_nothing_written(
    override: str,
    complaint: str,
    speeches: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    config, out = tmp_path / "c.toml", tmp_path / "out"
    config.write_text(small_config(speeches).to_toml(), encoding="utf-8")
    if (
        "model.name_or_path" in override
    ):  # a folder is not pre-trained here, and the small config says that it is
        text = config.read_text(encoding="utf-8").replace("pretraining_steps = 0", "")
        config.write_text(text, encoding="utf-8")
    assert run(config, out, monkeypatch, "--set", override) == 2
    said = capsys.readouterr()
    assert complaint in said.err
    assert said.err.startswith("Error: ")
    assert "Traceback" not in said.err
    assert said.out == ""
    assert not out.exists()


def test_a_user_column_of_nulls(
    nulls: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tmp_path / "c.toml"
    config.write_text(small_config(nulls).to_toml(), encoding="utf-8")
    assert run(config, tmp_path / "out", monkeypatch) == 2
    assert "data.user_column = 'author': all values are null" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_config_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "none.toml", tmp_path / "out", monkeypatch) == 2
    assert "none.toml" in capsys.readouterr().err


def test_a_config_that_is_not_toml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "c.toml"
    config.write_text("seed = = 1", encoding="utf-8")
    assert run(config, tmp_path / "out", monkeypatch) == 2
    assert "is not TOML" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"estimator": {"kind": "clipped", "min_weight": 4.0}}, "has no proved bound"),
        ({"local": {"task": "fedavg"}}, "one example has no local training"),
        ({"batch_size": None}, "strategy.batch_size: missing"),
        ({"cohort_size": 5.0}, "strategy.cohort_size = 5.0: not used by strategy 'els'"),
    ],
)
def test_els_refuses_what_nobody_has_proved(
    changes: dict[str, object],
    complaint: str,
    speeches: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    els = {"name": "els", "cohort_size": None, "batch_size": 9.0}
    config = tmp_path / "c.toml"
    text = small_config(speeches, strategy={**els, **changes}).to_toml()
    config.write_text(text, encoding="utf-8")
    assert run(config, tmp_path / "out", monkeypatch) == 2
    assert complaint in capsys.readouterr().err


def test_resume_with_another_config_names_what_changed(
    speeches: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config, out = tmp_path / "c.toml", tmp_path / "out"
    config.write_text(small_config(speeches).to_toml(), encoding="utf-8")
    out.mkdir()
    (out / "config.toml").write_text(config.read_text(encoding="utf-8"), encoding="utf-8")
    changed = ("--resume", "--set", "server.learning_rate=0.5", "--set", "seed=9")
    assert run(config, out, monkeypatch, *changed) == 2
    assert "seed, server.learning_rate differ" in capsys.readouterr().err


def test_a_taken_folder_is_not_overwritten(
    speeches: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config, out = tmp_path / "c.toml", tmp_path / "out"
    config.write_text(small_config(speeches).to_toml(), encoding="utf-8")
    out.mkdir()
    (out / "thesis.txt").write_text("years of work", encoding="utf-8")
    assert run(config, out, monkeypatch) == 2
    assert "already there" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]


def test_an_out_that_cannot_be_made(
    speeches: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config, file = tmp_path / "c.toml", tmp_path / "file"
    config.write_text(small_config(speeches).to_toml(), encoding="utf-8")
    file.write_text("not a folder", encoding="utf-8")
    assert run(config, file / "run", monkeypatch) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["run"], ["wombat"], ["account", "uls", "--rounds", "x"]])
def test_a_wrong_command_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fedsim", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_run_without_held_out_text_says_so(
    speeches: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tmp_path / "c.toml"
    text = small_config(speeches, data={"held_out_examples": 0.0}, strategy={"rounds": 1}).to_toml()
    config.write_text(text, encoding="utf-8")
    assert run(config, tmp_path / "out", monkeypatch) == 0
    assert "No text was held out" in capsys.readouterr().out

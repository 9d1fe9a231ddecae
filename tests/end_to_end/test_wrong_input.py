"""Whatever is wrong with the input: exit status 2, one message that helps, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.grids import memory_needed
from tests.helpers.commands import fedsim, write_config


@pytest.fixture
def config(speeches: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "c.toml", speeches)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("strategy.cohort_siz=5", "strategy.cohort_siz: unknown key; did you mean 'cohort_size'?"),
        ("wombat=1", "wombat: unknown key; known keys: data, executor"),
        ("privacy.accountant='moment'", "accountant = 'moment': unknown; known:"),
        ("strategy.cohort_size=500", "strategy.cohort_size = 500: larger than the population of"),
        ("strategy.name='ulss'", "strategy.name = 'ulss': did you mean 'uls'?"),
        ("strategy.rounds=many", "strategy.rounds = 'many'"),
        ("strategy.clip.l2_clip_norm=-1", "strategy.clip.l2_clip_norm = -1"),
        (
            "strategy.clip={l2_clip_norm=1e-25,schedule={kind='linear',final_l2_clip_norm=1e308}}",
            "strategy.clip.schedule.final_l2_clip_norm = 1e+308: no float holds its ratio to the",
        ),
        ("server.learning_rate=1e39", "server.learning_rate = 1e+39"),
        ("server.max_gradient_norm=1e300", "server.max_gradient_norm = 1e+300"),
        ("strategy.local={task='fedavg',learning_rate=1e39}", "learning_rate = 1e+39"),
        ("training.private_evaluation.loss_bound=1e308", "loss_bound = 1e+308"),
        ("training.private_evaluation.noise_multiplier=1e39", "noise_multiplier = 1e+39"),
        (
            "strategy.batch_size=5",
            "strategy.batch_size = 5.0: not used by strategy 'uls'; remove it and give strategy.co",
        ),
        ("data.source='nowhere.jsonl'", "nowhere.jsonl"),
        ("data.user_column='speaker'", "data.user_column = 'speaker'"),
        (
            "data={source='shakespeare',user_column='play'}",
            "data.user_column = 'play': the users of 'shakespeare' are the speakers",
        ),
        (
            "privacy.shared={ledger='/dev/null/x',epsilon=1.0,delta=1e-5}",
            "privacy.shared.ledger = '/dev/null/x': /dev/null is a file; give a file",
        ),
        (
            "privacy.shared={ledger='/tmp',epsilon=1.0,delta=1e-5}",
            "privacy.shared.ledger = '/tmp': it is a folder; give a file",
        ),
        ("data.text_column='speech'", "data.text_column = 'speech'"),
        ("data.prompt_column='q'", "data: prompt_column = 'q': without a completion_column"),
        ("data.messages_column='m'", "data: text_column and messages_column: texts are of one"),
        ("data.loss_on='assistant'", "data: loss_on = 'assistant': needs data.messages_column"),
        ("data.loss_on='completion'", "data: loss_on = 'completion': needs data.prompt_column"),
        ("data.chat_template='t.jinja'", "data: chat_template = 't.jinja': only messages go"),
        ("data.sequence_length=1", "data.sequence_length = 1"),
        ("data.sequence_length=4096", "4096"),
        ("model.name_or_path='nowhere/model'", "model.name_or_path = 'nowhere/model'"),
        ("model.dropout=1.0", "model.dropout = 1.0"),
        ("model.trainable='no_such_parameter'", "no_such_parameter"),
        ("executor.grid='rey'", "executor.grid = 'rey'"),
        ("executor.workers=2", 'needs grid = "ray"'),
        ("executor.engine='quick'", "executor.engine = 'quick'"),
        ("executor.precision='float16'", "executor.precision = 'float16'"),
        ("executor={checkpointing=true,engine='vmap'}", 'with engine = "vmap": torch.func'),
        ("strategy.local.task='sgd'", "strategy.local"),
        (
            "strategy.clip={l2_clip_norm=1e-20,adaptive={}}",
            "strategy.clip: a bound of 1e-20 beside strategy.clip.adaptive, which may make",
        ),
    ],
)
def test_one_message_and_nothing_written(
    override: str, complaint: str, config: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    if "model.name_or_path" in override:  # the small config says of its model: not pre-trained
        text = config.read_text(encoding="utf-8").replace("pretraining_steps = 0", "")
        config.write_text(text, encoding="utf-8")
    assert complaint in fedsim("run", config, "--out", out, "--set", override).complaint
    assert not out.exists()


def test_a_run_that_calls_itself_a_search(config: Path, out: Path) -> None:
    """Its report would say that its ε pays for a choice that nobody made."""
    search = ("privacy.search={trials=2}", "training.private_evaluation={}")
    overrides = [word for override in search for word in ("--set", override)]
    complaint = fedsim("run", config, "--out", out, *overrides).complaint
    assert "privacy.search.trial = None: a run of a search, which `fedsim tune`" in complaint
    assert not out.exists()


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (
            "executor.checkpointing=true",
            "executor.checkpointing = true: the network of 'mcmahan-lstm' has no blocks",
        ),
        (
            "model.attention=sdpa",
            "model.attention = 'sdpa': transformers cannot switch the network of 'mcmahan-lstm'",
        ),
    ],
)
def test_what_a_network_has_not(asked: str, complaint: str, config: Path, out: Path) -> None:
    lstm = ("model.name_or_path=mcmahan-lstm", "model.trainable=all", asked)
    overrides = [word for override in lstm for word in ("--set", override)]
    assert complaint in fedsim("run", config, "--out", out, *overrides).complaint
    assert not out.exists()


def test_a_model_that_does_not_fit_the_memory(
    config: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_needed, "memory_for_this_process", lambda: 10_000_000)
    done = fedsim("run", config, "--out", out, "--set", "model.trainable=all")
    assert "'tiny-gpt': a round needs at least 0.03 GB of the memory of this" in done.complaint
    assert not out.exists()


def test_a_user_column_of_nulls(tmp_path: Path, out: Path) -> None:
    nulls = tmp_path / "nulls.jsonl"
    nulls.write_text('{"author": null, "body": "to be or not"}\n' * 3, encoding="utf-8")
    config = write_config(tmp_path / "c.toml", nulls)
    complaint = fedsim("run", config, "--out", out).complaint
    assert "data.user_column = 'author': all values are null" in complaint
    assert not out.exists()


def test_a_config_that_is_not_there_or_not_toml(tmp_path: Path, out: Path) -> None:
    path = tmp_path / "c.toml"
    assert "c.toml is not there" in fedsim("run", path, "--out", out).complaint
    path.write_text("seed = = 1", encoding="utf-8")
    assert "is not TOML" in fedsim("run", path, "--out", out).complaint
    path.write_bytes(b"# \xe9")
    complaint = fedsim("run", path, "--out", out).complaint
    assert "is not UTF-8, from byte 2 on; convert it, with iconv" in complaint
    assert "is a folder; give a TOML file" in fedsim("run", tmp_path, "--out", out).complaint
    path.write_bytes(b"\xef\xbb\xbfwombat = 1\r\n")  # as Windows' Notepad writes it
    assert "wombat: unknown key" in fedsim("run", path, "--out", out).complaint


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"estimator": {"kind": "clipped", "min_weight": 4.0}}, "has no proved bound"),
        ({"local": {"task": "fedavg"}}, "one example has no local training"),
        ({"batch_size": None}, "strategy.batch_size: missing"),
        (
            {"cohort_size": 5.0},
            "cohort_size = 5.0: not used by strategy 'els'; remove it and give strategy.batch_size",
        ),
    ],
)
def test_els_refuses_what_nobody_has_proved(
    changes: dict[str, object], complaint: str, speeches: Path, tmp_path: Path, out: Path
) -> None:
    els = {"name": "els", "cohort_size": None, "batch_size": 9.0}
    config = write_config(tmp_path / "c.toml", speeches, strategy={**els, **changes})
    assert complaint in fedsim("run", config, "--out", out).complaint


def test_resume_with_another_config_names_what_changed(config: Path, out: Path) -> None:
    out.mkdir()
    (out / "config.toml").write_text(config.read_text(encoding="utf-8"), encoding="utf-8")
    changed = ("--resume", "--set", "server.learning_rate=0.5", "--set", "seed=9")
    complaint = fedsim("run", config, "--out", out, *changed).complaint
    assert "seed = 9 and not 0, server.learning_rate = 0.5 and not 0.01: not as in" in complaint


def test_a_taken_folder_is_not_overwritten(config: Path, out: Path) -> None:
    out.mkdir()
    (out / "thesis.txt").write_text("years of work", encoding="utf-8")
    for resume in ((), ("--resume",)):
        complaint = fedsim("run", config, "--out", out, *resume).complaint
        assert "holds files, and nothing to take up" in complaint
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]


def test_an_out_that_cannot_be_made(config: Path, out: Path) -> None:
    out.write_text("not a folder", encoding="utf-8")
    assert "cannot be written" in fedsim("run", config, "--out", out / "run").complaint


@pytest.mark.parametrize("arguments", [["run"], ["wombat"], ["account", "uls", "--rounds", "x"]])
def test_a_wrong_command_line(arguments: list[str]) -> None:
    done = fedsim(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr

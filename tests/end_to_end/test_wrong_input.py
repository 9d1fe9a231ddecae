"""Whatever is wrong with the input: exit status 2, one message that helps, nothing written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from fedsim.grids import memory_needed
from tests.helpers.commands import fedsim, write_config
from tests.helpers.light import light_config


@pytest.fixture
def config(speeches: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "c.toml", speeches)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("server", "least"),
    [("optimizer='sgd'", 0.022), ("optimizer='adam'", 0.03), ("average={kind='tail'}", 0.034)],
)
def test_a_model_that_does_not_fit_the_memory(
    server: str, least: float, config: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the network: parameters, gradient, sum, a text's pass, and the server's step."""
    monkeypatch.setattr(memory_needed, "memory_for_this_process", lambda: 10_000_000)
    done = fedsim(
        *("run", config, "--out", out, "--set", "model.trainable=all"),
        *("--set", "server.learning_rate=0.1", "--set", f"server.{server}"),
    )
    assert f"'tiny-gpt': a round needs at least {least} GB of the memory of this" in done.complaint
    assert "(model.quantisation" in done.complaint
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
    assert "c.toml does not exist" in fedsim("run", path, "--out", out).complaint
    path.write_text("seed = = 1", encoding="utf-8")
    assert "is not TOML" in fedsim("run", path, "--out", out).complaint
    path.write_bytes(b"# \xe9")
    complaint = fedsim("run", path, "--out", out).complaint
    assert "is not TOML in UTF-8" in complaint
    assert "Is a directory" in fedsim("run", tmp_path, "--out", out).complaint
    path.write_bytes(b"\xef\xbb\xbfwombat = 1\r\n")  # as Windows' Notepad writes it
    assert "wombat: unknown key" in fedsim("run", path, "--out", out).complaint


def test_resume_with_another_config_names_what_changed(config: Path, out: Path) -> None:
    out.mkdir()
    (out / "config.toml").write_text(config.read_text(encoding="utf-8"), encoding="utf-8")
    changed = ("--resume", "--set", "strategy.group_size=5", "--set", "seed=9")
    complaint = fedsim("run", config, "--out", out, *changed).complaint
    assert "seed = 9 and not 0, strategy.group_size = 5 and not " in complaint


def test_a_taken_folder_is_not_overwritten(config: Path, out: Path) -> None:
    out.mkdir()
    (out / "thesis.txt").write_text("years of work", encoding="utf-8")
    for resume in ((), ("--resume",)):
        complaint = fedsim("run", config, "--out", out, *resume).complaint
        assert "holds files, but no run to resume" in complaint
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]


def test_an_out_that_cannot_be_made(config: Path, out: Path) -> None:
    out.write_text("not a folder", encoding="utf-8")
    assert "cannot be written" in fedsim("run", config, "--out", out / "run").complaint


@pytest.mark.parametrize("noise", ["secure", "seeded"])
@pytest.mark.parametrize("variable", ["HOME", "XDG_CACHE_HOME"])
def test_a_cache_that_cannot_be_written_is_found_first(
    config: Path, out: Path, monkeypatch: pytest.MonkeyPatch, variable: str, noise: str
) -> None:
    """Before a model is trained that could not be kept."""
    for name in ("FEDSIM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "/dev/null")
    settings = ("--set", "model.pretraining_steps=1", "--set", f"privacy.noise={noise}")
    done = fedsim("run", config, "--out", out, *settings)
    assert "fedsim cannot be written (Not a directory): set the environment" in done.complaint
    assert "FEDSIM_CACHE" in done.complaint
    assert "pre-training" not in done.stderr
    assert not out.exists()


@pytest.mark.parametrize("variable", ["TMPDIR", "RAY_TMPDIR"])
def test_a_path_that_is_too_long_for_rays_sockets(
    config: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    pytest.importorskip("ray")
    folder = tmp_path / ("x" * 85)
    folder.mkdir()
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv(variable, str(folder))
    done = fedsim("run", config, "--out", out, "--set", "executor.grid=ray")
    assert "no Ray cluster: " in done.complaint
    assert "path length cannot exceed" in done.complaint


def test_a_broken_start_is_not_charged(
    speeches: Path, out: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither in the run's ledger nor in the one that runs share."""
    ledger = tmp_path / "people.json"
    shared = {"ledger": str(ledger), "epsilon": 9.0, "delta": 1e-3}
    config = light_config(speeches, privacy={"shared": shared, "noise": "secure"})
    model = shutil.copytree(config.model.name_or_path, tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    next(iter(weights.values())).view(-1)[0] = float("nan")
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    path = tmp_path / "c.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    done = fedsim("run", path, "--out", out, "--set", f"model.name_or_path={model}")
    assert "are NaN or infinite" in done.complaint
    assert not out.exists()
    assert not ledger.exists()


@pytest.mark.parametrize("arguments", [["run"], ["wombat"], ["account", "uls", "--rounds", "x"]])
def test_a_wrong_command_line(arguments: list[str]) -> None:
    done = fedsim(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr

"""Runs that end before their last round: taken up, they make no round again, and keep their ε."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsim
from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.accounting.privacy_filter import ORDERS, RenyiFilter
from fedsim.config import Config
from fedsim.config.schema import PrivateEvaluation
from fedsim.errors import BudgetSpentError, ConfigError
from fedsim.materials import Materials
from fedsim.report.schema import RoundMetrics, load_report
from fedsim.runner.folder import RunFolder
from fedsim.sampling import PoissonSampling, Relation
from fedsim.state import ServerState
from tests.helpers.commands import fedsim as command
from tests.helpers.light import light_config

COST = RoundCost(PoissonSampling(0.25), 1.0)


def config_of(speeches: Path, **privacy: Any) -> Config:  # noqa: ANN401
    return light_config(
        speeches,
        strategy={"rounds": 9, "cohort_size": 6},
        privacy={"declared_num_users": 24, "delta": 1e-3, "noise": "secure", **privacy},
        training={"evaluate_every": 9, "checkpoint_every": 3},
    )


def budget_for(rounds: int) -> float:
    """The least ε of which a privacy filter pays for so many rounds."""
    filters = [RenyiFilter(1.0, 1e-3, Relation.ADD_OR_REMOVE, order) for order in ORDERS]
    return min(each.converted([(COST, rounds)]) for each in filters) * (1.0 + 1e-9)


def with_own_epsilon(rounds: int) -> dict[str, Any]:
    """Settings whose ε pays for so many rounds at the noise that nine of them get."""
    return {"noise_multiplier": None, "epsilon": epsilon(COST, rounds, 1e-3)}


@dataclass
class Ended:
    """What is left of a run."""

    model: str
    epsilon: float | None
    rounds: int
    releases: int

    @classmethod
    def of(cls, path: Path) -> Ended:
        weights = (path / "model" / "model.safetensors").read_bytes()
        report = load_report(path)
        releases = RunFolder(path).read_ledger().num_releases
        digest = hashlib.sha256(weights).hexdigest()
        return cls(digest, report.privacy.epsilon, report.cost.rounds, releases)


def killed_after(round: int, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]) -> None:
    """Let the process end when a round is on disk; by `SystemError` at once, as SIGKILL does."""

    def end(line: RoundMetrics, materials: Materials) -> None:
        if line.round == round:
            raise kind

    monkeypatch.setattr("fedsim.runner.session.check_held_out", end)
    if kind is SystemError:
        monkeypatch.setattr("fedsim.runner.session._Session._keep_last", lambda _self: None)


def test_a_run_that_its_own_budget_ended(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after round 8, the last checkpoint of round 6: one of two lost ones is paid again."""
    config, path = config_of(speeches, **with_own_epsilon(9)), tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(SystemError):
        killed_after(8, patch, SystemError)
        fedsim.run(config, path)
    ended = []
    for _ in range(3):
        with pytest.raises(BudgetSpentError, match="round 7: 9 releases are charged, "):
            fedsim.run(config, path, resume=True)
        ended.append(Ended.of(path))
    assert ended[0] == ended[1] == ended[2]
    assert (ended[0].rounds, ended[0].releases) == (7, 9)
    assert ended[0].epsilon is not None
    assert ended[0].epsilon <= config.privacy.epsilon  # type: ignore[operator]


@pytest.mark.parametrize("lost", [False, True])
def test_a_run_that_a_shared_budget_ended(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """Its ε is of what it could have released at most: of the rounds that its own ε pays for."""
    shared = {"ledger": str(tmp_path / "people.json"), "delta": 1e-3}
    shared["epsilon"] = budget_for(7)
    config = config_of(speeches, **with_own_epsilon(9), shared=shared)
    path, ended = tmp_path / "run", []
    if lost:
        with monkeypatch.context() as patch, pytest.raises(SystemError):
            killed_after(4, patch, SystemError)
            fedsim.run(config, path)
    for turn in range(3):
        with pytest.raises(BudgetSpentError, match="this release would exceed the shared budget"):
            fedsim.run(config, path, resume=lost or turn > 0)
        ended.append(Ended.of(path))
    assert ended[0] == ended[1] == ended[2]
    assert (ended[0].rounds, ended[0].releases) == (6 if lost else 7, 7)
    said = " ".join(load_report(path).privacy.assumptions)
    assert ("1 of the 9 releases were repeated" in said) is lost
    assert ended[0].epsilon == pytest.approx(config.privacy.epsilon, rel=1e-3)
    assert ended[0].epsilon <= config.privacy.epsilon  # type: ignore[operator]


def test_ctrl_c_loses_no_round_that_is_done(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secure rounds are charged again where they are made again: here none is."""
    config, path = config_of(speeches, **with_own_epsilon(9)), tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        killed_after(5, patch, KeyboardInterrupt)
        fedsim.run(config, path)
    fedsim.run(config, path, resume=True)
    assert Ended.of(path).releases == Ended.of(path).rounds == 9


def test_ctrl_c_in_the_middle_of_a_step_keeps_the_checkpoint_before_it(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step has begun to overwrite the optimizer's moments: they are of no round."""
    config, path = config_of(speeches, **with_own_epsilon(12), noise="seeded"), tmp_path / "run"
    fedsim.run(config, tmp_path / "whole")

    def cut_off(state: Any) -> None:  # noqa: ANN401
        if state.round == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fedsim.runner.training.check_parameters", cut_off)
        fedsim.run(config, path)
    assert sorted(file.name for file in (path / "checkpoints").iterdir()) == [
        "round-000003.safetensors"
    ]
    fedsim.run(config, path, resume=True)
    assert Ended.of(path).model == Ended.of(tmp_path / "whole").model


def out_of_memory(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "a file")


@pytest.mark.parametrize(
    ("at", "error"),
    [
        ("session.evaluate", out_of_memory),
        ("session.load_model", out_of_memory),  # evaluates the last round
        ("session.private_scores", out_of_memory),
        ("session.save_model", full),
        ("folder.RunFolder.append_metrics", full),
        ("folder.RunFolder.write_ledger", full),
        ("session.save_checkpoint", full),
        ("session._Session._charge_shared", full),
    ],
)
@pytest.mark.parametrize("calls", [3, 1])
def test_whatever_ends_a_run_no_paid_round_is_lost(
    speeches: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
    error: Callable[..., None],
    calls: int,
) -> None:
    """Secure rounds are paid for again where they are made again: here none is."""
    settings = with_own_epsilon(9) | {"epsilon": 20.0}
    config = config_of(speeches, **settings)
    scores = PrivateEvaluation(noise_multiplier=4.0, loss_bound=6.0, every=2)
    training = {"evaluate_every": 2, "checkpoint_every": 6, "private_evaluation": scores}
    config = config.model_copy(update={"training": config.training.model_copy(update=training)})
    original, count = attribute(at), iter(range(99))

    def fails_once(*args: Any, **named: Any) -> Any:  # noqa: ANN401  (as of each)
        if next(count) == calls:
            error()
        return original(*args, **named)

    monkeypatch.setattr(f"fedsim.runner.{at}", fails_once)
    path = tmp_path / "run"
    with suppress(torch.OutOfMemoryError, OSError):  # what is called fewer times does not fail
        fedsim.run(config, path)
    for _ in range(calls):
        next(count)
    fedsim.run(config, path, resume=True)
    assert RunFolder(path).read_ledger().num_releases == 9 + 5
    lines = fedsim.load_metrics(path)
    assert [line.round for line in lines if line.held_out] == [0, 2, 4, 6, 8, 9]
    assert [line.round for line in lines if line.private_scores] == [2, 4, 6, 8, 9]


def attribute(name: str) -> Any:  # noqa: ANN401  (a function or a method)
    module, *parts = name.split(".")
    found: Any = import_module(f"fedsim.runner.{module}")
    for part in parts:
        found = getattr(found, part)
    return found


def test_a_checkpoint_that_would_go_makes_room_on_a_full_disk(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, path = config_of(speeches, **with_own_epsilon(9)), tmp_path / "run"
    original = attribute("session.save_checkpoint")

    def fits_two(folder: Path, state: ServerState, keep: int) -> Path:
        if len(list(folder.iterdir())) == 2:
            full()
        saved: Path = original(folder, state, keep)
        return saved

    monkeypatch.setattr("fedsim.runner.session.save_checkpoint", fits_two)
    with pytest.raises(OSError, match="No space left"):
        fedsim.run(config, path)
    left = sorted(file.name for file in (path / "checkpoints").iterdir())
    assert left == ["round-000006.safetensors", "round-000009.safetensors"]
    monkeypatch.undo()
    fedsim.run(config, path, resume=True)
    assert Ended.of(path).releases == Ended.of(path).rounds == 9


def test_the_command_says_what_the_first_said(speeches: Path, tmp_path: Path) -> None:
    shared = {"ledger": str(tmp_path / "people.json"), "delta": 1e-3}
    shared["epsilon"] = budget_for(4)
    config = tmp_path / "c.toml"
    text = config_of(speeches, **with_own_epsilon(9), shared=shared).to_toml()
    config.write_text(text, encoding="utf-8")
    said = []
    for again in ([], ["--resume"]):
        done = command("run", config, "--out", tmp_path / "run", *again)
        assert done.returncode == 3, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1]
    assert "for 9 rounds" in said[0]


def test_a_saved_model_that_does_not_open_is_no_wrong_input(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit status 2 says that nothing was written, and this run was."""

    def unreadable(*_: object, **__: object) -> None:
        raise ConfigError("model.name_or_path: no config.json")

    monkeypatch.setattr("fedsim.runner.session.load_model", unreadable)
    path = tmp_path / "c.toml"
    path.write_text(config_of(speeches, **with_own_epsilon(9)).to_toml(), encoding="utf-8")
    done = command("run", path, "--out", tmp_path / "run")
    assert done.returncode == 1
    assert "Error: the saved model cannot be opened" in done.stderr
    assert "no config.json" in done.stderr

"""States on disk come back bit for bit; a run is taken up from the newest that is whole."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedsim.accounting.events import RoundCost
from fedsim.accounting.ledger import Ledger
from fedsim.config import Config, parse_config
from fedsim.errors import ConfigError
from fedsim.report.schema import RoundMetrics
from fedsim.runner.checkpoint import (
    checkpoints_in,
    load_checkpoint,
    newest_whole_state,
    save_checkpoint,
)
from fedsim.runner.folder import RunFolder
from fedsim.runner.training import train
from fedsim.sampling import PoissonSampling
from fedsim.server.over_rounds import Average
from fedsim.server_optimizer import ServerOptimizer
from fedsim.state import ServerState
from tests.unit.mechanism.test_plan import make_plan
from tests.unit.mechanism.test_round import Pull, same_state, start

SERVER = ServerOptimizer("adam", 0.1, average=Average("tail", 1), debias=True)
PLAN = make_plan(optimizer=SERVER)
COST = RoundCost(PoissonSampling(0.25), 1.5)


def state_after(rounds: int) -> ServerState:
    return train(start(), PLAN, Pull(), rounds)


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    odd = {
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "a/b.c": torch.tensor([0.0, -0.0, float("nan"), float("inf"), 1e-45]),
        "scalar": torch.tensor(0.1),
        "none": torch.zeros(0, 3),
    }
    optimizer = {"a/b.c/step": torch.tensor(3.0), "scalar/exp_avg": torch.tensor(-0.5)}
    ledger = Ledger().charge(0, COST, "secure").charge(1, COST, "seeded:1")
    path = save_checkpoint(tmp_path, ServerState(7, odd, optimizer, ledger, 0.3), keep=1)
    back = load_checkpoint(path)
    assert path.name == "round-000007.safetensors"
    assert (back.round, back.ledger, back.clip_scale) == (7, ledger, 0.3)
    for before, after in ((odd, back.parameters), (optimizer, back.optimizer_state)):
        assert before.keys() == after.keys()
        for name, value in before.items():
            assert after[name].shape == value.shape
            assert torch.equal(after[name].view(torch.int32), value.contiguous().view(torch.int32))


def test_training_goes_on_from_disk_as_if_nothing_had_been(tmp_path: Path) -> None:
    early = state_after(2)
    back = load_checkpoint(save_checkpoint(tmp_path, early, keep=1))
    assert same_state(back, early)
    assert same_state(train(back, PLAN, Pull(), 5), state_after(5))
    assert same_state(train(early, PLAN, Pull(), 5), state_after(5))
    assert same_state(early, state_after(2))  # the given state stays


def test_the_last_ones_are_kept_and_equal_states_give_equal_files(tmp_path: Path) -> None:
    assert checkpoints_in(tmp_path) == checkpoints_in(tmp_path / "absent") == []
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    for round in (2, 9, 10, 100):
        save_checkpoint(tmp_path, ServerState(round, start().parameters), keep=2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["notes.txt", "round-000010.safetensors", "round-000100.safetensors"]
    again = save_checkpoint(tmp_path / "again", ServerState(100, start().parameters), keep=2)
    assert again.read_bytes() == (tmp_path / "round-000100.safetensors").read_bytes()


def test_a_write_that_fails_leaves_the_older_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = save_checkpoint(tmp_path, state_after(1), keep=1)

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", no_space)
        with pytest.raises(OSError, match="No space left"):
            save_checkpoint(tmp_path, state_after(2), keep=1)
    assert checkpoints_in(tmp_path) == [first]
    assert same_state(load_checkpoint(first), state_after(1))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "header": lambda path: path.write_bytes(b"\xff" * 64 + path.read_bytes()[64:]),
    "empty": lambda path: path.write_bytes(b""),
    "gone": Path.unlink,
    "foreign": lambda path: save_file({"weight": torch.zeros(3)}, path),
    "old": lambda path: save_file({"w": torch.zeros(3)}, path, {"fedsim": '{"format": 3}'}),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_one_error(
    damage: Callable[[Path], object], tmp_path: Path
) -> None:
    path = save_checkpoint(tmp_path, state_after(1), keep=1)
    damage(path)
    with pytest.raises(ConfigError, match=r"damaged \(.*\); delete it, or take") as raised:
        load_checkpoint(path)
    assert str(path) in str(raised.value)


def lines_of(folder: RunFolder) -> list[int]:
    return [line.round for line in folder.read_metrics()]


def line_of(round: int) -> RoundMetrics:
    return RoundMetrics(round=round, units=1, gradients=1, non_finite=0, estimate_norm=1e-7 * round)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run killed in the line of round 5: checkpoints of rounds 2 and 4, four rounds charged."""
    folder = RunFolder(tmp_path / "run")
    folder.begin(parse_config({}), {}, 0)
    for round in range(5):
        folder.append_metrics(line_of(round))
    with folder.metrics.open("a", encoding="utf-8") as file:
        file.write('{"round": 5, "lo')
    for rounds in (2, 4):
        save_checkpoint(folder.checkpoints, state_after(rounds), keep=2)
    folder.write_ledger(state_after(4).ledger)
    return folder


def newest(folder: RunFolder) -> Path:
    return folder.checkpoints / "round-000004.safetensors"


@pytest.mark.parametrize("repeats", [True, False])
def test_taking_up_cuts_the_metrics_back_and_keeps_charges(
    folder: RunFolder, caplog: pytest.LogCaptureFixture, repeats: bool
) -> None:
    """A damaged checkpoint is passed over; releases with other noise stay charged."""
    assert lines_of(folder) == [0, 1, 2, 3, 4]
    before = folder.metrics.read_bytes()
    newest(folder).write_bytes(newest(folder).read_bytes()[:-1])
    with caplog.at_level(logging.WARNING, "fedsim"):
        state = folder.take_up(repeats=repeats)
    (warning,) = caplog.messages
    assert str(newest(folder)) in warning
    assert state is not None and state.round == 2
    assert state.ledger.num_releases == (2 if repeats else 4)
    assert lines_of(folder) == [0, 1, 2]
    assert before.startswith(folder.metrics.read_bytes())
    folder.append_metrics(line_of(3))
    assert lines_of(folder) == [0, 1, 2, 3]


def test_without_a_checkpoint_a_run_begins_again(folder: RunFolder) -> None:
    for path in folder.checkpoints.iterdir():
        path.unlink()
    assert folder.take_up(repeats=True) is None
    assert lines_of(folder) == []


def test_without_a_whole_checkpoint_a_run_is_refused(folder: RunFolder) -> None:
    for path in folder.checkpoints.iterdir():
        path.write_bytes(b"half")
    before = folder.metrics.read_bytes()
    with pytest.raises(ConfigError, match=r"round-000004.*damaged"):
        folder.take_up(repeats=True)
    assert folder.metrics.read_bytes() == before
    assert newest_whole_state(folder.path / "nothing") is None


@pytest.mark.parametrize("lost", ["ledger.json", "metrics.jsonl"])
def test_a_file_that_is_gone_is_not_an_empty_one(folder: RunFolder, lost: str) -> None:
    (folder.path / lost).unlink()
    with pytest.raises(ConfigError, match="lacks rounds before it: restore"):
        folder.take_up(repeats=True)


def test_a_ledger_that_cannot_be_read_is_not_an_empty_one(folder: RunFolder) -> None:
    folder.ledger.write_text(folder.ledger.read_text(encoding="utf-8")[:-3], encoding="utf-8")
    with pytest.raises(ConfigError, match=r"ledger\.json: damaged"):
        folder.take_up(repeats=False)


def test_the_ledger_on_disk_never_shrinks(folder: RunFolder) -> None:
    """A seeded run that makes rounds again has them charged already."""
    folder.write_ledger(state_after(3).ledger)
    assert folder.read_ledger() == state_after(4).ledger
    folder.write_ledger(state_after(5).ledger)
    assert folder.read_ledger() == state_after(5).ledger


def resumed(**sections: dict[str, object]) -> Config:
    return parse_config({"data": {"source": "x"}, **sections})


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"privacy": {"delta": 1e-5}}, "privacy.delta"),
        ({"strategy": {"local": {"task": "fedavg"}}}, "strategy.local.task"),
        ({"training": {"keep_checkpoints": 3}}, "training.keep_checkpoints"),
    ],
)
def test_another_config_is_refused_by_its_keys(
    sections: dict[str, dict[str, object]], named: str, tmp_path: Path
) -> None:
    for number, (one, other) in enumerate(
        ((resumed(), resumed(**sections)), (resumed(**sections), resumed()))
    ):
        folder = RunFolder(tmp_path / str(number))
        folder.begin(one, {}, 0)
        folder.check(one, resume=True)
        with pytest.raises(ConfigError, match=f"{named} = .* and not .*: differs from the run"):
            folder.check(other, resume=True)


def test_a_kill_in_the_first_write_leaves_a_fresh_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / ".config.toml.123.tmp").write_text("[dat")
    folder.check_fresh()
    folder.begin(resumed(), {}, 0)
    with pytest.raises(ConfigError, match="already exists"):
        folder.check_fresh()


@pytest.mark.parametrize("name", ["checkpoints", "notes.txt", ".hidden", ".config.toml"])
def test_a_folder_with_anything_else_is_taken(tmp_path: Path, name: str) -> None:
    RunFolder(tmp_path / "absent").check_fresh()
    RunFolder(tmp_path).check_fresh()  # empty
    (tmp_path / name).touch()
    for taken, why in ((tmp_path, "holds files, but no run"), (tmp_path / name, "a file")):
        with pytest.raises(ConfigError, match=why):
            RunFolder(taken).check_fresh()

"""States on disk come back bit for bit; what cannot be read back is said so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedsim.accounting.events import RoundCost
from fedsim.accounting.ledger import Ledger
from fedsim.config import Config, parse_config
from fedsim.errors import ConfigError
from fedsim.runner.checkpoint import (
    PLACEHOLDER,
    checkpoints_in,
    load_checkpoint,
    save_checkpoint,
    seal,
)
from fedsim.runner.folder import RunFolder
from fedsim.runner.training import train
from fedsim.sampling import PoissonSampling
from fedsim.server_optimizer import ServerOptimizer
from fedsim.state import ServerState
from tests.unit.mechanism.test_plan import make_plan
from tests.unit.mechanism.test_round import Pull, same_state, start

PLAN = make_plan(optimizer=ServerOptimizer("adam", 0.1))
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
    ledger = (
        Ledger().charge(0, COST, "secure").charge(0, COST, "secure").charge(1, COST, "seeded:1")
    )
    path = save_checkpoint(tmp_path, ServerState(7, odd, optimizer, ledger), keep=1)
    back = load_checkpoint(path)
    assert path.name == "round-000007.safetensors"
    assert (back.round, back.ledger) == (7, ledger)
    for before, after in ((odd, back.parameters), (optimizer, back.optimizer_state)):
        assert before.keys() == after.keys()
        for name, value in before.items():
            assert after[name].shape == value.shape
            assert after[name].dtype == value.dtype
            assert torch.equal(after[name].view(torch.int32), value.contiguous().view(torch.int32))


def test_training_leaves_the_state_that_it_is_given() -> None:
    early = state_after(2)
    seen: list[ServerState] = []
    for _ in range(2):
        late = train(early, PLAN, Pull(), 5, on_round=lambda state, _: seen.append(state))
        assert same_state(late, state_after(5))
    assert same_state(early, state_after(2))
    with pytest.raises(ValueError, match="this optimizer state became the next round's"):
        train(seen[0], PLAN, Pull(), 5)


def test_training_goes_on_from_disk_as_if_nothing_had_been(tmp_path: Path) -> None:
    back = load_checkpoint(save_checkpoint(tmp_path, state_after(2), keep=1))
    assert same_state(back, state_after(2))
    assert same_state(train(back, PLAN, Pull(), 5), state_after(5))


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    assert checkpoints_in(tmp_path) == checkpoints_in(tmp_path / "absent") == []
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    for round in (2, 9, 10, 100):
        save_checkpoint(tmp_path, ServerState(round, start().parameters), keep=2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["notes.txt", "round-000010.safetensors", "round-000100.safetensors"]
    assert checkpoints_in(tmp_path)[-1] == tmp_path / "round-000100.safetensors"


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


OLD = {"format": "2", "round": "1"}
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-7]), "cannot be read"),
    "header": (lambda p: p.write_bytes(b"\xff" * 64 + p.read_bytes()[64:]), "cannot be read"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be read"),
    "text": (lambda path: path.write_text("not a checkpoint at all"), "cannot be read"),
    "gone": (Path.unlink, "cannot be read"),
    "foreign": (lambda p: save_file({"weight": torch.zeros(3)}, p), "not a fedsim checkpoint"),
    "old": (lambda p: save_file({"parameters/w": torch.zeros(3)}, p, OLD), "not a fedsim checkp"),
}


@pytest.mark.parametrize(("damage", "complaint"), DAMAGES.values(), ids=DAMAGES)
def test_what_is_no_checkpoint_is_refused_by_name(
    damage: Callable[[Path], object], complaint: str, tmp_path: Path
) -> None:
    path = save_checkpoint(tmp_path, state_after(1), keep=1)
    damage(path)
    with pytest.raises(ConfigError, match=complaint) as raised:
        load_checkpoint(path)
    assert str(path) in str(raised.value)


def lines_of(folder: RunFolder) -> list[int]:
    return [line["round"] for line in folder.read_metrics()]


def line_of(round: int) -> str:
    """A line of the metrics, as `take_up` writes it again."""
    what = {"units": 1, "gradients": 1, "non_finite": 0, "estimate_norm": 0.1 * round}
    return json.dumps({"round": round} | what, separators=(",", ":"))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run killed in the middle of the line of round 5, with a checkpoint of round 2."""
    folder = RunFolder(tmp_path / "run")
    folder.begin(parse_config({}), {}, 0)
    for round in range(5):
        folder.append_metrics(line_of(round))
    with folder.metrics.open("a", encoding="utf-8") as file:
        file.write('{"round": 5, "lo')
    save_checkpoint(folder.checkpoints, state_after(2), keep=2)
    folder.write_ledger(state_after(4).ledger)
    return folder


def test_a_half_line_ends_the_metrics(folder: RunFolder) -> None:
    assert lines_of(folder) == [0, 1, 2, 3, 4]


def test_taking_up_cuts_the_metrics_back_to_the_checkpoint(folder: RunFolder) -> None:
    state = folder.take_up(secure=False)
    assert state is not None and same_state(state, state_after(2))
    assert lines_of(folder) == [0, 1, 2]
    folder.append_metrics('{"round":3}')
    assert folder.metrics.read_text(encoding="utf-8").splitlines()[2:] == [
        line_of(2),
        '{"round":3}',
    ]


def test_secure_releases_that_were_charged_stay_charged(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    plan = make_plan(entropy="secure")
    early = train(start(), plan, Pull(), 2)
    late = train(early, plan, Pull(), 5)
    for round in range(3):
        folder.append_metrics(line_of(round))
    save_checkpoint(folder.checkpoints, early, keep=1)
    folder.write_ledger(late.ledger)
    taken = folder.take_up(secure=True)
    assert taken is not None and taken.round == 2
    assert taken.ledger == late.ledger
    assert taken.ledger.num_releases == 5
    assert train(taken, plan, Pull(), 3).ledger.num_releases == 6


def test_without_a_checkpoint_a_run_begins_anew(folder: RunFolder) -> None:
    for path in folder.checkpoints.iterdir():
        path.unlink()
    assert folder.take_up(secure=False) is None
    assert lines_of(folder) == []


def test_a_ledger_that_cannot_be_read_is_not_an_empty_one(folder: RunFolder) -> None:
    assert folder.read_ledger() == state_after(4).ledger
    folder.ledger.write_text(folder.ledger.read_text(encoding="utf-8")[:-3], encoding="utf-8")
    with pytest.raises(ConfigError, match="not JSON"):
        folder.take_up(secure=True)
    folder.ledger.unlink()
    assert folder.read_ledger() == Ledger()


def resumed(**sections: dict[str, object]) -> Config:
    return parse_config({"data": {"source": "x"}, **sections})


def test_a_run_is_taken_up_with_the_config_it_had(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"holds no run \(no config.toml\)"):
        folder.check_resumable(resumed())
    folder.begin(resumed(), {}, 0)
    folder.check_resumable(resumed(server={"optimizer": "adam"}))  # the default, spelt out


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"privacy": {"delta": 1e-5}}, "privacy.delta"),
        ({"strategy": {"local": {"task": "fedavg"}}}, "strategy.local.task"),
        ({"strategy": {"cohort_size": 3}}, "strategy.cohort_size"),
        ({"training": {"keep_checkpoints": 3}}, "training.keep_checkpoints"),
    ],
)
def test_another_config_is_refused_by_its_keys(
    sections: dict[str, dict[str, object]], named: str, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    folder.begin(resumed(), {}, 0)
    with pytest.raises(ConfigError, match=f"{named} = .* and not .*: not as in the run"):
        folder.check_resumable(resumed(**sections))
    RunFolder(tmp_path / "other").begin(resumed(**sections), {}, 0)
    with pytest.raises(ConfigError, match=f"{named} = .* and not .*: not as in the run"):
        RunFolder(tmp_path / "other").check_resumable(resumed())


@pytest.mark.parametrize(
    ("head", "complaint"),
    [
        ("not json", "not a fedsim checkpoint"),
        ("[1]", "not a fedsim checkpoint"),
        ('{"format": 3}', "sha256"),
        ('{"format": 3, SEAL, "round": "two", "ledger": {}, "clip_scale": 1}', "round = 'two'"),
        ('{"format": 4, SEAL, "round": 2, "ledger": {}, "clip_scale": 1}', r"format 4; .* reads 3"),
        ('{"format": 3, "round": 2, "ledger": {}, "clip_scale": 1}', "sha256"),
        ('{"format": 3, SEAL, "round": 2, "ledger": {}}', "clip_scale"),
        ('{"format": 3, SEAL, "round": 2, "ledger": {}, "clip_scale": NaN}', "clip_scale|NaN"),
        ('{"format": 3, SEAL, "round": 2, "ledger": {"version": 99}, "clip_scale": 1}', "version"),
    ],
)
def test_a_bad_head_is_one_clear_error(tmp_path: Path, head: str, complaint: str) -> None:
    path = tmp_path / "round-000002.safetensors"
    content = head.replace("SEAL", f'"sha256": "{PLACEHOLDER}"')
    save_file({"parameters/w": torch.ones(2)}, path, {"fedsim": content})
    if "SEAL" in head:
        seal(path)
    with pytest.raises(ConfigError, match=complaint):
        load_checkpoint(path)


def test_equal_states_give_equal_files(tmp_path: Path) -> None:
    states = [train(start(), make_plan(), Pull(), 2) for _ in range(2)]
    paths = [
        save_checkpoint(tmp_path / name, state, 1) for name, state in zip("ab", states, strict=True)
    ]
    assert paths[0].read_bytes() == paths[1].read_bytes()

"""A flipped bit is found and named; the run goes on from the checkpoint before, or not at all."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedsim.accounting.ledger import Ledger
from fedsim.config import parse_config
from fedsim.errors import ConfigError
from fedsim.runner.checkpoint import load_checkpoint, newest_whole_state, save_checkpoint
from fedsim.runner.folder import RunFolder
from fedsim.state import ServerState
from tests.unit.mechanism.test_round import same_state
from tests.unit.runner.test_checkpoint import COST, line_of, state_after


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_a_bit_anywhere_counts(tmp_path: Path) -> None:
    ledger = Ledger().charge(0, COST, "seeded:1")
    state = ServerState(1, {"w": torch.tensor([1.0, -2.0])}, {"w/step": torch.tensor(1.0)}, ledger)
    path = save_checkpoint(tmp_path, state, keep=1)
    assert same_state(load_checkpoint(path), state)
    for bit in range(0, 8 * path.stat().st_size, 3):  # each byte, and each place in a byte
        flip(path, bit)
        with pytest.raises(ConfigError) as raised:
            load_checkpoint(path)
        assert str(path) in str(raised.value), bit
        flip(path, bit)
    assert same_state(load_checkpoint(path), state)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Checkpoints of rounds 2 and 4, all four rounds charged and in the metrics."""
    folder = RunFolder(tmp_path / "run")
    folder.begin(parse_config({}), {}, 0)
    for round in range(5):
        folder.append_metrics(line_of(round))
    folder.write_ledger(state_after(4).ledger)
    for rounds in (2, 4):
        save_checkpoint(folder.checkpoints, state_after(rounds), keep=2)
    return folder


def newest(folder: RunFolder) -> Path:
    return folder.checkpoints / "round-000004.safetensors"


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(
    folder: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    flip(newest(folder), 8 * newest(folder).stat().st_size - 1)
    with caplog.at_level(logging.WARNING, "fedsim"):
        state = folder.take_up(secure=False)
    assert state is not None and same_state(state, state_after(2))
    assert [line["round"] for line in folder.read_metrics()] == [0, 1, 2]
    (warning,) = caplog.messages
    assert str(newest(folder)) in warning
    fresh = folder.take_up(secure=True)
    assert fresh is not None and (fresh.round, fresh.ledger.num_releases) == (2, 4)


def test_charges_are_not_lost_with_a_damaged_checkpoint(folder: RunFolder) -> None:
    """The ledger on disk lacks rounds that the damaged file's name bears witness to."""
    newest(folder).write_bytes(b"")
    folder.ledger.unlink()
    folder.write_ledger(state_after(3).ledger)
    with pytest.raises(ConfigError, match=r"round-000004\..*charges are missing"):
        folder.take_up(secure=False)


def test_a_ledger_that_is_gone_is_not_an_empty_one(folder: RunFolder) -> None:
    folder.ledger.unlink()
    for secure in (False, True):
        with pytest.raises(ConfigError, match="charges are missing"):
            folder.take_up(secure)


@pytest.mark.parametrize("secure", [True, False])
def test_nor_before_the_first_checkpoint(folder: RunFolder, secure: bool) -> None:
    """The metrics bear witness to four rounds: nothing is cut, and a whole ledger goes on."""
    for path in folder.checkpoints.iterdir():
        path.unlink()
    whole, before = folder.ledger.read_bytes(), folder.metrics.read_bytes()
    for ledger in (None, state_after(3).ledger):
        folder.ledger.unlink(missing_ok=True)
        if ledger is not None:
            folder.write_ledger(ledger)
        with pytest.raises(ConfigError, match=r"metrics\.jsonl has 4 .*charges are missing"):
            folder.take_up(secure)
    assert folder.metrics.read_bytes() == before
    folder.ledger.write_bytes(whole)
    assert folder.take_up(secure) is None


@pytest.mark.parametrize("secure", [True, False])
def test_a_checkpoint_of_another_run_is_not_taken_up(folder: RunFolder, secure: bool) -> None:
    """Its releases, of another mechanism or with other noise, were charged elsewhere."""
    for cost, release in ((replace(COST, noise_multiplier=9.0), "seeded:1"), (COST, "seeded:2")):
        other = replace(state_after(4), ledger=Ledger().charge(3, cost, release))
        save_checkpoint(folder.checkpoints, other, keep=2)
        with pytest.raises(ConfigError, match=r"round-000004\..*made by 1 releases that ledger"):
            folder.take_up(secure)


def test_without_a_whole_checkpoint_a_run_is_refused(folder: RunFolder) -> None:
    for path in folder.checkpoints.iterdir():
        path.write_bytes(b"half")
    before = folder.metrics.read_bytes()
    with pytest.raises(ConfigError, match=r"round-000004.*no other can be read"):
        folder.take_up(secure=False)
    assert folder.metrics.read_bytes() == before
    assert newest_whole_state(folder.path / "nothing", Ledger()) is None


def test_the_ledger_on_disk_never_shrinks(folder: RunFolder) -> None:
    """A seeded run that makes rounds again has them charged already."""
    folder.write_ledger(state_after(3).ledger)
    assert folder.read_ledger() == state_after(4).ledger
    folder.write_ledger(state_after(5).ledger)
    assert folder.read_ledger() == state_after(5).ledger

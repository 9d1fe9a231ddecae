"""A run taken up by a version that draws from other addresses: nothing that was charged is lost."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import fedsim
from fedsim.accounting.ledger import Ledger
from fedsim.accounting.promise import verify
from fedsim.report.schema import load_report
from fedsim.runner.checkpoint import load_checkpoint, save_checkpoint
from fedsim.runner.folder import RunFolder
from tests.helpers.light import light_config


def cut_off(folder: RunFolder) -> None:
    """Leave what a kill after round 4, before its checkpoint, leaves."""
    folder.report.unlink()
    max(folder.checkpoints.iterdir()).unlink()


def change_charges(folder: RunFolder, noise_multiplier: float | None = None) -> None:
    """Give all releases another id, and another cost, in the ledger and in the checkpoints."""

    def changed(ledger: Ledger) -> Ledger:
        items = [
            replace(
                item,
                release="seeded:0",
                cost=replace(item.cost, noise_multiplier=noise_multiplier)
                if noise_multiplier
                else item.cost,
            )
            for item in ledger.items
        ]
        return Ledger(tuple(items))

    content = json.dumps(changed(folder.read_ledger()).to_json())
    folder.ledger.write_text(content, encoding="utf-8")
    for path in folder.checkpoints.iterdir():
        state = load_checkpoint(path)
        save_checkpoint(folder.checkpoints, replace(state, ledger=changed(state.ledger)), keep=9)


def test_rounds_that_are_repeated_are_charged_once_and_others_again(
    speeches: Path, tmp_path: Path
) -> None:
    config = light_config(speeches, training={"keep_checkpoints": 2})
    folder = RunFolder(fedsim.run(config, tmp_path / "run").path)
    before = load_report(folder.path).privacy
    cut_off(folder)
    fedsim.run(config, folder.path, resume=True)
    assert load_report(folder.path).privacy == before
    cut_off(folder)
    change_charges(folder)
    fedsim.run(config, folder.path, resume=True)
    after = load_report(folder.path).privacy
    assert (before.rounds, after.rounds) == (4, 6)  # rounds 3 and 4 released twice, differently
    assert before.epsilon is not None
    assert after.epsilon is not None and after.epsilon > before.epsilon
    again = "2 of the 6 releases were made again"
    assert [again in " ".join(found.assumptions) for found in (before, after)] == [False, True]
    # From round 0 again: rounds 3 and 4 now begin from other parameters than when they were drawn.
    folder.report.unlink()
    for checkpoint in folder.checkpoints.iterdir():
        checkpoint.unlink()
    fedsim.run(config, folder.path, resume=True)
    assert load_report(folder.path).privacy.rounds == 10
    assert len({item.release for item in folder.read_ledger().items}) == 3


def as_by_another_version(folder: RunFolder, noise_multiplier: float | None = None) -> None:
    """Make the charged releases those of another version, which may have had other noise."""
    cut_off(folder)
    change_charges(folder, noise_multiplier)


def test_an_epsilon_after_releases_of_another_cost_counts_them_as_they_were(
    speeches: Path, tmp_path: Path
) -> None:
    config = light_config(speeches, training={"keep_checkpoints": 2, "evaluate_every": 1})
    folder = RunFolder(fedsim.run(config, tmp_path / "run").path)
    as_by_another_version(folder, noise_multiplier=0.5)
    fedsim.run(config, folder.path, resume=True)
    privacy = load_report(folder.path).privacy
    assert privacy.epsilon is not None
    last = folder.read_metrics()[-1]
    assert last["epsilon"] == pytest.approx(privacy.epsilon, rel=1e-6)
    for noise, rounds in ((0.5, 4), (1.0, 2)):
        assert f"{rounds} rounds of Poisson sampling of users" in privacy.statement
        assert f"noise multiplier {noise:g}" in privacy.statement
    assert privacy.sampler.endswith("(others too: see the statement)")
    assert verify(folder.model)["statement"] == privacy.statement


def test_two_ways_to_go_on_from_one_run_share_no_noise(speeches: Path, tmp_path: Path) -> None:
    """A copy without the newest checkpoint goes on from earlier parameters than the other."""
    config = light_config(speeches, training={"keep_checkpoints": 3, "checkpoint_every": 1})
    folder = RunFolder(fedsim.run(config, tmp_path / "run").path)
    as_by_another_version(folder)
    other = RunFolder(Path(shutil.copytree(folder.path, tmp_path / "copy")))
    max(other.checkpoints.iterdir()).unlink()
    ids = []
    for each in (folder, other):
        fedsim.run(config, each.path, resume=True)
        ids.append({item.release for item in each.read_ledger().items})
    assert ids[0] & ids[1] == {"seeded:0"}
    assert [len(found) for found in ids] == [2, 2]

"""A run taken up by a version that draws from other addresses: nothing that was charged is lost."""

from __future__ import annotations

import json
from pathlib import Path

import fedsim
from fedsim.report.schema import load_report
from fedsim.runner.folder import RunFolder
from tests.conftest import small_config


def cut_off(folder: RunFolder) -> None:
    """Leave what a kill after round 4, before its checkpoint, leaves."""
    folder.report.unlink()
    max(folder.checkpoints.iterdir()).unlink()


def test_rounds_that_are_repeated_are_charged_once_and_others_again(
    speeches: Path, tmp_path: Path
) -> None:
    config = small_config(speeches, training={"keep_checkpoints": 2})
    folder = RunFolder(fedsim.run(config, tmp_path / "run").path)
    before = load_report(folder.path).privacy
    cut_off(folder)
    fedsim.run(config, folder.path, resume=True)
    assert load_report(folder.path).privacy == before
    cut_off(folder)
    ledger = json.loads(folder.ledger.read_text(encoding="utf-8"))
    text = json.dumps(ledger).replace(f'"{folder.read_ledger().items[0].release}"', '"seeded:0"')
    folder.ledger.write_text(text, encoding="utf-8")
    fedsim.run(config, folder.path, resume=True)
    after = load_report(folder.path).privacy
    assert (before.rounds, after.rounds) == (4, 6)  # rounds 3 and 4 released twice, differently
    assert before.epsilon is not None
    assert after.epsilon is not None
    assert after.epsilon > before.epsilon
    again = "2 of the 6 releases were made again"
    assert [again in " ".join(found.assumptions) for found in (before, after)] == [False, True]
    # From round 0 again: rounds 3 and 4 now begin from other parameters than when they were drawn.
    folder.report.unlink()
    for checkpoint in folder.checkpoints.iterdir():
        checkpoint.unlink()
    fedsim.run(config, folder.path, resume=True)
    assert load_report(folder.path).privacy.rounds == 10
    assert len({item.release for item in folder.read_ledger().items}) == 3

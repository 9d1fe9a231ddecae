"""`fedsim tune` after its end: whatever was killed or failed, it goes on to the same winner."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedsim.errors import ConfigError
from fedsim.report.schema import load_report
from fedsim.runner.folder import RunFolder
from fedsim.sweep.jobs import Job, Outcomes, attempt
from fedsim.sweep.search import TRIALS, WINNER, run_search
from tests.helpers.commands import fedsim, fedsim_ok
from tests.helpers.processes import ended, start
from tests.unit.sweep.test_search import RATES, cells_of, draw, weights, write


class Interrupted:
    """Carries out the first trials and then ends, as a kill between two would."""

    def __init__(self, trials: int) -> None:
        self.trials = trials

    def __call__(self, jobs: Sequence[Job]) -> Outcomes:
        for job in jobs:
            if self.trials == 0:
                raise KeyboardInterrupt
            self.trials -= 1
            yield attempt(job)


@pytest.mark.parametrize("killed_after", [0, 1])
def test_a_search_that_was_killed_goes_on_to_the_same_winner(
    speeches: Path, tmp_path: Path, killed_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw(monkeypatch, 2)
    config = write(tmp_path / "c.toml", speeches, noise="secure")
    cells = cells_of(config)
    with pytest.raises(KeyboardInterrupt):
        run_search(cells, tmp_path / "one", trials=6.0, runner=Interrupted(killed_after))
    # The price is of the winner of all trials: the best so far has no promise to give away.
    trained = list((tmp_path / "one").rglob("model"))
    assert len(trained) == min(killed_after, 1)
    assert not list((tmp_path / "one").rglob("privacy.json"))
    assert all("privacy.json" in fedsim("push", m.parent, "a/b").complaint for m in trained)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    before = (tmp_path / "one" / "ledger.json").read_bytes()
    winners = [
        run_search(cells, tmp_path / name, trials=6.0, resume=True) for name in ("one", "two")
    ]
    assert weights(winners[0]) == weights(winners[1])
    fedsim_ok("account", "verify", winners[0] / "model")
    (winners[1] / "model" / "privacy.json").unlink()  # killed before it was written
    assert run_search(cells, tmp_path / "two", trials=6.0, resume=True) == winners[1]
    fedsim_ok("account", "verify", winners[1] / "model")
    assert (tmp_path / "one" / "ledger.json").read_bytes() == before  # charged once
    ledger = RunFolder(winners[0]).read_ledger()
    assert ledger.num_releases == load_report(winners[0]).cost.rounds
    assert run_search(cells, tmp_path / "one", trials=6.0, resume=True) == winners[0]


def test_a_process_that_is_killed_for_real_goes_on(speeches: Path, tmp_path: Path) -> None:
    config = write(tmp_path / "c.toml", speeches)
    arguments = ("tune", config, "--vary", RATES, "--trials", "6", "--out")
    process = start(tmp_path / "log", *arguments, tmp_path / "killed")
    deadline = time.monotonic() + 120.0
    while not list((tmp_path / "killed").glob(f"{TRIALS}/*/{WINNER}/metrics.jsonl")):
        assert time.monotonic() < deadline
        assert process.is_alive()
        time.sleep(0.002)
    process.kill()
    assert ended(process) == -signal.SIGKILL
    done = fedsim_ok(*arguments, tmp_path / "killed", "--resume", "--json")
    straight = fedsim(*arguments, tmp_path / "straight", "--json")
    assert json.loads(done.stdout) == json.loads(straight.stdout)
    assert weights(tmp_path / "killed" / WINNER) == weights(tmp_path / "straight" / WINNER)
    other = fedsim(
        "tune", config, "--vary", RATES, "--trials", "7", "--resume", "--out", tmp_path / "killed"
    )
    assert "holds another search" in other.complaint
    assert "already exists" in fedsim(*arguments, tmp_path / "killed").complaint


def test_a_failed_trial_stops_the_search_and_can_be_taken_up(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw(monkeypatch, 1)
    cells = cells_of(write(tmp_path / "c.toml", speeches))

    def failing(jobs: Sequence[Job]) -> Outcomes:
        for job in jobs:
            yield attempt(Job(job.name, job.config, tmp_path / "c.toml"))

    with pytest.raises((RuntimeError, ConfigError)):
        run_search(cells, tmp_path / "out", trials=3.0, runner=failing)
    assert run_search(cells, tmp_path / "out", trials=3.0, resume=True).exists()


def test_a_search_does_not_go_on_over_other_text(speeches: Path, tmp_path: Path) -> None:
    own = tmp_path / speeches.name
    own.write_bytes(speeches.read_bytes())
    cells = cells_of(write(tmp_path / "c.toml", own, noise="secure"))
    with pytest.raises(KeyboardInterrupt):
        run_search(cells, tmp_path / "out", trials=6.0, runner=Interrupted(0))
    charged = (tmp_path / "out" / "ledger.json").read_bytes()
    line = json.loads(own.read_text(encoding="utf-8").splitlines()[0])
    with own.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**line, "author": "somebody else"}) + "\n")
    with pytest.raises(ConfigError, match="changed since the run"):
        run_search(cells, tmp_path / "out", trials=6.0, resume=True)
    assert (tmp_path / "out" / "ledger.json").read_bytes() == charged

"""Checkpoints that lost a bit: the run goes on from the one before, and says which was damaged."""

from __future__ import annotations

from pathlib import Path

from fedsim.runner.checkpoint import checkpoints_in
from fedsim.runner.folder import RunFolder
from tests.robustness.faults.sweep import Sweep, unclear
from tests.robustness.kills.child import Strike, kill_myself
from tests.robustness.kills.scene import Scene

_LATE = 10  # the change of the metrics, from 0, before which the run is cut off


def damaged_checkpoint(sweep: Sweep) -> None:
    """Change a bit of the newest checkpoint of a run that was cut off, and take the run up."""
    with sweep.scene("charge") as scene:
        newest = _cut_off(sweep, scene)[-1]
        bit = _change_a_bit(sweep, newest)
        status, words = sweep.carry_out(scene)
        warned = [line for line in words.splitlines() if str(newest) in line]
        problems = [] if status == 0 and len(warned) == 1 else [f"bit {bit}: {status}: {words}"]
        problems += sweep.to_the_end(scene)
    sweep.take_down("damaged checkpoint", problems)


def no_whole_checkpoint(sweep: Sweep) -> None:
    """Change a bit of every checkpoint: the run must be refused, and nothing changed."""
    with sweep.scene("charge") as scene:
        for path in _cut_off(sweep, scene):
            _change_a_bit(sweep, path)
        charged = RunFolder(scene.run).ledger.read_bytes()
        status, words = sweep.carry_out(scene)
        problems = unclear(status, words, (2,), str(scene.run))
        if RunFolder(scene.run).ledger.read_bytes() != charged:
            problems.append("ledger.json was changed")
    sweep.take_down("all checkpoints damaged", problems)


def ledger_put_back(sweep: Sweep) -> None:
    """Put an older ledger in the place of the run's: charges are missing, so it is refused."""
    with sweep.scene("charge") as scene:
        sweep.carry_out(scene, Strike("evaluate", 4, kill_myself))
        older = RunFolder(scene.run).ledger.read_bytes()
        _cut_off(sweep, scene)
        RunFolder(scene.run).ledger.write_bytes(older)
        status, words = sweep.carry_out(scene)
        problems = unclear(status, words, (2,), "ledger.json", "charges are missing")
    sweep.take_down("ledger older than the checkpoints", problems)


def _cut_off(sweep: Sweep, scene: Scene) -> list[Path]:
    """Carry a run out until it has several checkpoints, and return them."""
    sweep.carry_out(scene, Strike("evaluate", _LATE, kill_myself))
    found = checkpoints_in(RunFolder(scene.run).checkpoints)
    if len(found) < 2:
        raise RuntimeError(f"{len(found)} checkpoints before the cut")
    return found


def _change_a_bit(sweep: Sweep, path: Path) -> int:
    content = bytearray(path.read_bytes())
    bit = sweep.rng.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return bit

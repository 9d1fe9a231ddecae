"""What `faults` does inside its mount namespace: `FOLDER SECONDS SEED OUT.json real|limit`."""

from __future__ import annotations

import json
import logging
import random
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path

from tests.conftest import write_speeches
from tests.robustness.faults.damage import damaged_checkpoint, ledger_put_back, no_whole_checkpoint
from tests.robustness.faults.disk_faults import full_disk, read_only, read_only_from_the_start
from tests.robustness.faults.disks import mount_small_disk
from tests.robustness.faults.second_process import second_process
from tests.robustness.faults.sweep import Sweep
from tests.robustness.kills.kills import leave_alone
from tests.robustness.kills.scene import write_config
from tests.robustness.kills.stages import STAGES

log = logging.getLogger("tests.robustness")

_MEGABYTES = 64  # a life needs about 20
_LOCKED = ("begin", "charge", "checkpoint", "model", "report")

Trial = Callable[[Sweep], None]


def main(folder: Path, seconds: float, seed: int, out: Path, real: bool) -> None:
    """Sweep, and write counts and losses as JSON."""
    deadline = time.monotonic() + seconds
    rng = random.Random(seed)  # noqa: S311
    text, config, disk = folder / "text.jsonl", folder / "seeded.toml", folder / "disk"
    write_speeches(text, seed)
    write_config(config, text, "seeded")
    disk.mkdir()
    if real:
        mount_small_disk(disk, _MEGABYTES)
    sweep = Sweep(disk, folder / "said", real, config, leave_alone(folder, config), rng)
    trials = _trials(sweep.undisturbed.changes, real, rng)
    for number, trial in enumerate(trials):
        if time.monotonic() > deadline:
            sweep.counts["left out for want of time"] = len(trials) - number
            break
        trial(sweep)
        if number % 5 == 4:
            log.info("faults: %d of %d", number + 1, len(trials))
    found = {"counts": dict(sweep.counts), "losses": sweep.losses}
    out.write_text(json.dumps(found), encoding="utf-8")


def _trials(changes: Mapping[str, int], real: bool, rng: random.Random) -> list[Trial]:
    """Return what there is to try, the kinds by turns: a sweep cut short has tried all of them."""
    full: list[Trial] = [
        partial(full_disk, stage=stage, number=number)
        for pick in (rng.randrange, lambda _: 0, lambda n: n - 1)
        for stage, number in rng.sample([(s, pick(changes[s])) for s in STAGES], len(STAGES))
    ]
    frozen: list[Trial] = [
        partial(read_only, stage=stage, number=rng.randrange(changes[stage]))
        for stage in rng.sample(STAGES, len(STAGES))
    ]
    others: list[Trial] = [damaged_checkpoint] * 4
    others += [no_whole_checkpoint, ledger_put_back]
    others += [partial(second_process, stage=stage) for stage in _LOCKED]
    frozen = [read_only_from_the_start, *frozen] if real else []
    turns = zip_longest(full, frozen, others)
    return [trial for trial in chain.from_iterable(turns) if trial is not None]


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    log.setLevel(logging.INFO)
    _folder, _seconds, _seed, _out, _kind = sys.argv[1:]
    main(Path(_folder), float(_seconds), int(_seed), Path(_out), _kind == "real")

"""Dirty gradients: NaN, infinities, huge and tiny numbers, through every path that adds them up."""

from __future__ import annotations

import logging
import time
import warnings
from pathlib import Path

import numpy as np

from tests.robustness.dirty.engines import World, trial
from tests.robustness.dirty.paths import trial_of_paths
from tests.robustness.dirty.sums import Judged, trial_of_sums
from tests.robustness.outcome import Outcome

_SHOWN = 20


def run(folder: Path, seconds: float, seed: int) -> Outcome:
    """Try random dirt until the time is over, and at least a few times each way."""
    rng = np.random.default_rng(seed)
    world, judged = World.make(folder, seed), Judged()
    end = time.monotonic() + seconds
    logging.getLogger("fedsim.clients").setLevel(
        logging.ERROR
    )  # a fresh engine warns of each new start
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy's and torch's word that arithmetic went wrong
        trials = 0
        while time.monotonic() < end or trials < 10:
            trial(world, rng, judged)
            for _ in range(10):
                trial_of_sums(rng, judged)
            trial_of_paths(world, rng, judged)
            trials += 1
    counts = {"trials": trials} | {f"units, {name}": n for name, n in judged.counts.items()}
    more = len(judged.losses) - _SHOWN
    shown = (*judged.losses[:_SHOWN], *((f"and {more} more",) if more > 0 else ()))
    return Outcome("dirty gradients", counts, shown)

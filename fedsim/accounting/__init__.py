"""Accounting: from the mechanism of a round to the (ε, δ) of a run.

events.py        what one round costs, as a value
accountants.py   rounds to ε or δ, by name; the methods are in methods/
trade_off.py     what an attacker can make of it, from every (ε, δ) at once
calibration.py   the least noise that keeps a promised ε
ledger.py        every release of a run, as a round charges it (fedsim/round.py); budget.py says
                 what is left of an (ε, δ)
statement.py     an ε with everything that it must be said with, in words and as JSON
promise.py       that beside a model's weights, and whether it still holds
earlier_training.py  what a starting point was trained on before, which counts too

Imports samplers and `seeding`, never `data`, `runner` or `report`.
"""

from pathlib import Path

PROMISE = "privacy.json"
"""A model's promise, beside its weights: see promise.py. Who only looks for it loads nothing."""

GIVEN = "given.json"
"""Beside weights that were given from Python: what they were opened from, and its past."""


def is_unfinished(folder: Path) -> bool:
    """Whether a folder has the model or adapter of a run of fedsim that has no promise yet."""
    in_run = folder.name in ("model", "adapter") and (folder.parent / "ledger.json").exists()
    return in_run and not (folder / PROMISE).exists()

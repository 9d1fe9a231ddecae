"""The audit of the mechanisms as a table and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.table import Table

from fedsim.accounting.rounding import text_down, text_up
from fedsim.audit.mechanism import MechanismAudit

Repeated = Sequence[Sequence[MechanismAudit]]
TERMS = (
    "Unit: user; relation: add-or-remove-one user. Bounds are lower bounds with 95 % confidence, "
    "by exact binomial limits (Clopper and Pearson), at the same δ as the claim. Where texts are "
    "co-owned, unit: owner; relation: fixed-graph; the target is an owner who wrote nothing. Noise "
    "of the audited rounds is seeded; the claim takes coins and noise that stay secret."
)
_TOLERATED = 0.05  # of the repetitions may exceed the claim at 95 % confidence


def mechanisms(audits: Repeated) -> Table:
    """Return a row for each mechanism: claim, bounds, and how often the claim survived."""
    title = "Claimed ε and what real rounds show of it"
    table = Table(title=title, title_justify="left", show_lines=True)
    table.add_column("mechanism")  # in lines, so that all of it fits eighty columns
    several = len(audits[0]) > 1
    for head in ("claimed ε", "mean shown ε" if several else "shown ε", "share", "holds"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in audits:
        one = row[0]
        bounds = [audit.bound.epsilon for audit in row]
        least = f"\nleast {text_down(min(bounds), 3)}" if len(row) > 1 else ""
        table.add_row(
            f"{one.strategy}, {one.sampler}\n"
            f"rate {one.sampling_probability:g}, units a user {one.units_per_user}, "
            f"rounds {one.rounds}\n"
            f"z = {one.noise_multiplier:.4g}, trials 2 × {one.trials:,}\n"
            f"δ = {text_up(one.bound.delta)}, accountant {one.accountant}",
            text_up(one.claimed_epsilon, 4),
            f"{text_down(float(np.mean(bounds)), 3)}{least}",
            f"{np.mean([audit.share for audit in row]):.0%}",
            f"{sum(audit.holds for audit in row)} of {len(row)}",
        )
    return table


def to_json(audits: Repeated) -> dict[str, Any]:
    """Return everything, every repetition, as JSON values."""
    return {
        "terms": TERMS,
        "mechanisms": [
            {**asdict(audit), "holds": audit.holds, "share": audit.share}
            for row in audits
            for audit in row
        ],
        "all_well": all_well(audits),
    }


def all_well(audits: Repeated) -> bool:
    """Return whether claims hold as often as stated."""
    return all(sum(not audit.holds for audit in row) / len(row) <= _TOLERATED for row in audits)

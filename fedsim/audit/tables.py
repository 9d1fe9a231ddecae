"""The audit of fedsim itself as tables and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.table import Table

from fedsim.audit.mechanism import MechanismAudit
from fedsim.audit.mutants import Verdict

Repeated = Sequence[Sequence[MechanismAudit]]
TERMS = (
    "Unit: user; relation: add-or-remove-one user. Bounds are lower bounds with 95 % confidence, "
    "by exact binomial limits (Clopper and Pearson), at the same δ as the claim."
)
_TOLERATED = 0.05  # of the repetitions may exceed the claim at 95 % confidence


def mechanisms(audits: Repeated) -> Table:
    """Return a row for each mechanism: claim, bounds, and how often the claim survived."""
    table = Table(title="Claimed ε and what real rounds show of it", title_justify="left")
    for head in (
        "strategy", "sampler", "rate", "units a user", "rounds", "z", "trials", "δ", "accountant",
        "claimed ε", "shown ε", "share", "claim holds",
    ):  # fmt: skip
        table.add_column(head, justify="left" if head in ("strategy", "sampler") else "right")
    for row in audits:
        one = row[0]
        bounds = [audit.bound.epsilon for audit in row]
        least = f" (least {min(bounds):.2f})" if len(row) > 1 else ""
        table.add_row(
            one.strategy,
            one.sampler,
            f"{one.sampling_probability:g}",
            f"{one.units_per_user}",
            f"{one.rounds}",
            f"{one.noise_multiplier:.4g}",
            f"2 × {one.trials:,}",
            f"{one.bound.delta:g}",
            one.accountant,
            f"{one.claimed_epsilon:.3f}",
            f"{np.mean(bounds):.2f}{least}",
            f"{np.mean([audit.share for audit in row]):.0%}",
            f"{sum(audit.holds for audit in row)} of {len(row)}",
        )
    return table


def bugs(verdicts: Sequence[Verdict]) -> Table:
    """Return a row for each deliberate bug."""
    table = Table(title="Fifteen deliberate bugs", title_justify="left")
    for head in ("bug", "caught by", "claimed ε", "shown with", "shown without", "δ", "accountant"):
        table.add_column(head, justify="left" if head in ("bug", "caught by") else "right")
    for one in verdicts:
        table.add_row(
            one.bug,
            one.caught_by.replace("_", " ") + (", FALSE ALARM" if one.false_alarm else ""),
            f"{one.claimed_wrong:.2f}",
            f"{one.wrong.epsilon:.2f}",
            f"{one.right.epsilon:.2f}",
            f"{one.wrong.delta:g}",
            one.accountant,
        )
    return table


def to_json(audits: Repeated, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return everything, every repetition, as JSON values."""
    return {
        "terms": TERMS,
        "mechanisms": [
            {**asdict(audit), "holds": audit.holds, "share": audit.share}
            for row in audits
            for audit in row
        ],
        "bugs": [asdict(one) for one in verdicts],
        "all_well": all_well(audits, verdicts),
    }


def all_well(audits: Repeated, verdicts: Sequence[Verdict]) -> bool:
    """Return whether claims hold as often as stated and every bug, and nothing else, was caught."""
    broken = [sum(not audit.holds for audit in row) / len(row) for row in audits]
    caught = all(one.caught_by != "nothing" and not one.false_alarm for one in verdicts)
    return caught and max(broken) <= _TOLERATED

"""Attacks on several runs side by side: a table, and a panel with the intervals."""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.accounting.rounding import text_up
from fedsim.report.attack_report import AttackReport, Group
from fedsim.report.figures import Axis, Level, Panel, Point, Series
from fedsim.report.style import colour, shorten
from fedsim.report.tables import Table
from fedsim.report.wording import NOTHING, count_text, decimal_text

HEADS = ("run", "attacked", "samples", "users", "AUROC", "interval", "allowed")
COLUMNS = (
    "AUROC of an attack that tells users who were trained on from users who were not (users: "
    "both numbers); 0.5 is guessing. Samples: texts of each user that the attacker has. Allowed: "
    "the largest AUROC under the guarantee."
)

Attacks = Sequence[tuple[str, AttackReport]]


def attack_table(attacks: Attacks) -> Table | None:
    """Return a row for each attacked group of each run, or None if no run was attacked.

    Args:
        attacks: label and attack of each attacked run.
    """
    if not attacks:
        return None
    rows = [
        [
            label,
            attacked_name(group),
            count_text(group.measured[0].samples),
            f"{count_text(group.users_in)} + {count_text(group.users_out)}",
            decimal_text(group.measured[0].auroc),
            " to ".join(map(decimal_text, group.measured[0].auroc_interval)),
            NOTHING if attack.bound.auroc is None else text_up(attack.bound.auroc, 3),
        ]
        for label, attack in attacks
        for group in attack.groups
    ]
    reasons = [attack.bound.reason for _, attack in attacks]
    notes = [COLUMNS, *reasons, *(attack.note for _, attack in attacks)]
    return Table(HEADS, rows, notes=list(dict.fromkeys(notes)), left=(0, 1))


def attack_panel(attacks: Attacks) -> Panel:
    """Return a row for each attacked group of each run: its AUROC with the interval."""
    shown = [(label, group) for label, attack in attacks for group in attack.groups]
    labels = list(dict.fromkeys(label for label, _ in shown))
    return Panel(
        "attacks",
        "Attack: AUROC",
        "0.5 is guessing, 1 finds every user.",
        [
            Series(
                f"{label}, {attacked_name(group)}",
                [Point(row, group.measured[0].auroc, *group.measured[0].auroc_interval)],
                colour(labels.index(label)),
                marks=True,
            )
            for row, (label, group) in enumerate(shown)
        ],
        x=Axis(limits=(0.0, 1.01)),
        levels=[Level(0.5, "guessing")],
        rows=[
            f"{shorten(label, 24)} · {attacked_name(group)} · "
            f"{decimal_text(group.measured[0].auroc)}"
            for label, group in shown
        ],
    )


def attacked_name(group: Group) -> str:
    """Return how texts for readers call the users of a group."""
    return {"canaries": "planted users"}.get(group.name, group.name)

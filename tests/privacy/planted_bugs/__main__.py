"""`python -m tests.privacy.planted_bugs [TRIALS]`: what the audit shows of each planted bug."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from fedsim.audit.tables import TERMS
from tests.privacy.planted_bugs.mutants import Verdict, judge, mutants


def table(verdicts: Sequence[Verdict]) -> Table:
    """Return a row for each deliberate bug."""
    rows = Table(title="Twenty deliberate bugs", title_justify="left")
    for head in ("bug", "caught by", "claimed ε", "shown with", "shown without", "δ", "accountant"):
        rows.add_column(head, justify="left" if head in ("bug", "caught by") else "right")
    for verdict in verdicts:
        rows.add_row(
            verdict.bug,
            verdict.caught_by.replace("_", " ") + (", FALSE ALARM" if verdict.false_alarm else ""),
            f"{verdict.claimed_wrong:.2f}",
            f"{verdict.wrong.epsilon:.2f}",
            f"{verdict.right.epsilon:.2f}",
            f"{verdict.wrong.delta:g}",
            verdict.accountant,
        )
    return rows


def main(trials: int) -> int:
    """Print the table; return 1 if a bug goes unseen or the true code is suspected."""
    verdicts = [judge(mutant, trials) for mutant in mutants()]
    Console().print(table(verdicts), TERMS)
    return int(any(each.caught_by == "nothing" or each.false_alarm for each in verdicts))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500))

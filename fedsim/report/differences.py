"""Differences between pairs of arms of a grid, as a table with notes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from fedsim.report.grid_result import CellResult, GridResult, line_parts
from fedsim.report.intervals import Difference, difference
from fedsim.report.tables import Table
from fedsim.report.wording import NOTHING

HEADS = ("arms", "difference in loss", "unpaired", "seeds")


def differences(lines: Sequence[CellResult]) -> tuple[Difference, ...]:
    """Return the difference of each two lines that differ in at most one setting.

    The config counts as a setting. A setting that one line lacks, such as ε without a guarantee,
    does not count as different. The pairs are sorted by the setting in which they differ.
    """
    keys = [*dict.fromkeys(key for line in lines for key in ("", *line.settings))]
    pairs: list[tuple[int, Difference]] = []
    for one, other in combinations(lines, 2):
        a, b = ({"": line.source, **line.settings} for line in (one, other))
        changed = [key for key in keys if key in a.keys() & b and a[key] != b[key]]
        pair = difference(one.name, other.name, one.counted_losses, other.counted_losses)
        if pair and len(changed) < 2:
            pairs.append((keys.index(changed[0]) if changed else len(keys), pair))
    return tuple(pair for _, pair in sorted(pairs, key=lambda entry: entry[0]))


def differences_table(result: GridResult) -> Table | None:
    """Return a table with one row per pair; None if there are no pairs."""
    if not result.differences:
        return None
    parts = line_parts(result.lines)
    rows = [
        [_pair_text(parts[pair.first], parts[pair.second]), *_numbers(pair)]
        for pair in result.differences
    ]
    return Table(HEADS, rows, _notes(result))


def _pair_text(first: tuple[str, ...], second: tuple[str, ...]) -> str:
    """Return the label of a pair, such as "uls vs els (ε = 2)"."""
    own, others = (
        ", ".join(part for part in parts if part not in shared) or ", ".join(parts)
        for parts, shared in ((first, second), (second, first))
    )
    both = ", ".join(part for part in first if part in second)
    return f"{own} vs {others}" + (f" ({both})" if both else "")


def _numbers(pair: Difference) -> list[str]:
    several = len(pair.seeds) > 1
    mean = f"{'* ' if pair.clear else ''}{pair.loss.mean:+.4f}".replace("-", "−")
    return [
        f"{mean} ± {pair.loss.high - pair.loss.mean:.4f}" if several else mean,
        f"± {pair.unpaired:.4f}" if several else NOTHING,
        f"{len(pair.seeds)}",
    ]


def _notes(result: GridResult) -> list[str]:
    several = any(len(pair.seeds) > 1 for pair in result.differences)
    notes = [
        "Difference: the first arm's held-out loss minus the second's, for arms that differ in one "
        "setting; below zero the first is better."
    ]
    if several:
        notes.append(
            "±: Student's 95 % interval of the differences within each seed (paired), and as if "
            "the arms were independent (unpaired). *: the paired interval excludes zero; one in "
            "twenty does so by chance if arms do not differ."
        )
    else:
        notes.append("One seed gives no interval; --seeds 3 gives paired intervals.")
    return notes

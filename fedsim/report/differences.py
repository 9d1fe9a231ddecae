"""The arms of a grid in pairs: their differences, as a table, and what to read with it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from fedsim.report.grid_result import CellResult, GridResult, line_parts
from fedsim.report.intervals import Difference, difference
from fedsim.report.tables import Table
from fedsim.report.wording import NOTHING

HEADS = ("arms", "difference in loss", "unpaired", "seeds")


def differences(lines: Sequence[CellResult]) -> tuple[Difference, ...]:
    """Return the difference of every two lines that have at most one setting apart.

    The config counts as a setting. A setting that one of the two lacks, such as ε without a
    guarantee, is not apart. Pairs that differ in the same setting follow each other.
    """
    keys = [*dict.fromkeys(key for line in lines for key in ("", *line.settings))]
    found: list[tuple[int, Difference]] = []
    for one, other in combinations(lines, 2):
        mine, theirs = ({"": line.source, **line.settings} for line in (one, other))
        apart = [key for key in keys if key in mine.keys() & theirs and mine[key] != theirs[key]]
        pair = difference(one.name, other.name, one.counted_losses, other.counted_losses)
        if pair and len(apart) < 2:
            found.append((keys.index(apart[0]) if apart else len(keys), pair))
    return tuple(pair for _, pair in sorted(found, key=lambda entry: entry[0]))


def differences_table(result: GridResult) -> Table | None:
    """Return a row for each pair; None without any."""
    if not result.differences:
        return None
    parts = line_parts(result.lines)
    rows = [
        [_pair_text(parts[pair.first], parts[pair.second]), *_numbers(pair)]
        for pair in result.differences
    ]
    return Table(HEADS, rows, _notes(result))


def _pair_text(first: tuple[str, ...], second: tuple[str, ...]) -> str:
    """Return such as "uls vs els (ε = 2)"."""
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
        "Difference: the first arm's held-out loss less the second's, of arms with one setting "
        "apart; below zero the first is better."
    ]
    if several:
        notes.append(
            "±: Student's 95 % interval of the differences within each seed (paired), and as if "
            "the arms were independent (unpaired). *: the paired interval leaves zero out; of "
            "twenty pairs without a difference one does so by chance."
        )
    else:
        notes.append("One seed gives no interval; --seeds 3 gives paired ones.")
    return notes

"""How a store's numbers are shown: tables in the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsim.data.doubtful_names import Doubt
from fedsim.utils.terminal import table_console


def print_inspection(found: dict[str, Any]) -> None:
    """Print what `inspect_store` found: facts, quantiles, what was dropped, a note."""
    console = table_console()
    console.print(_facts(found))
    console.print(_quantiles(found["quantiles"]))
    console.print(_dropped(found["dropped"]))
    if "owners" in found:
        _print_owners(console, found["owners"], found["examples"])
    for doubt in found["doubtful_names"]:
        console.print(f"{Doubt(**doubt).sentence}.", markup=False)
    group = found["group_size"]
    console.print(
        f"group_size of the heuristic for els: {group['els_median']}, the median user "
        f"(keeps {group['els_part_kept']:.0%} of the examples): {group['note']}."
    )
    console.print(found["note"])


def _print_owners(console: Console, found: dict[str, Any], examples: int) -> None:
    console.print(
        f"{found['owners']:,} owners, {found['wrote_nothing']:,} of whom are the user of no text: "
        "els keeps examples of which no owner has more than group_size"
    )
    console.print(
        _quantiles({key: found[key] for key in ("owners_per_example", "examples_per_owner")})
    )
    rules = [key for key in found["kept"][0] if key != "group_size"]
    table = Table("group_size", *rules, title="examples kept, by bounding and selection", box=None)
    for row in found["kept"]:
        table.add_row(
            str(row["group_size"]),
            *(f"{row[rule]:,} ({row[rule] / examples:.0%})" for rule in rules),
        )
    console.print(table)


def _facts(found: dict[str, Any]) -> Table:
    facts = Table(show_header=False, box=None)
    for key in ("store", "source"):
        facts.add_row(key, Text(found[key], overflow="fold"))
    for key in ("users", "examples", "tokens"):
        facts.add_row(key, f"{found[key]:,}")
    facts.add_row("examples per user", f"{found['examples_per_user']['mean']:,.1f} on average")
    facts.add_row("loss on", f"{found['loss_on']} ({found['counted_tokens']:,} tokens count)")
    facts.add_row("longest example", f"{found['sequence_length']} ({found['cutting']})")
    return facts


def _quantiles(found: dict[str, dict[str, int]]) -> Table:
    levels = next(iter(found.values()))
    table = Table("quantile", *(f"{float(level):.0%}" for level in levels), box=None)
    for name, values in found.items():
        table.add_row(name.replace("_", " "), *(f"{value:,}" for value in values.values()))
    return table


def _dropped(counts: dict[str, int]) -> Table:
    table = Table("dropped", "count", box=None)
    for reason, count in counts.items() or [("nothing", 0)]:
        table.add_row(reason, f"{count:,}")
    return table

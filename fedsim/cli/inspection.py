"""Show a token store's numbers as tables in the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from fedsim.data.doubtful_names import Doubt
from fedsim.utils.terminal import table_console, table_of


def print_inspection(found: dict[str, Any]) -> None:
    """Print the result of `inspect_store`: facts, quantiles, counts of dropped rows, a note."""
    facts = [
        ("store", found["store"]),
        ("source", found["source"]),
        *((key, f"{found[key]:,}") for key in ("users", "examples", "tokens")),
        ("examples per user", f"{found['mean_examples_per_user']:,.1f} on average"),
        ("loss on", f"{found['loss_on']} ({found['counted_tokens']:,} tokens count)"),
        ("longest example", f"{found['sequence_length']} ({found['cutting']})"),
    ]
    dropped = [(reason, f"{count:,}") for reason, count in found["dropped"].items()]
    console = table_console()
    for term, value in facts:
        console.print(f"{term:<18}{value}", markup=False, highlight=False)
    console.print(_quantiles(found["quantiles"]))
    console.print(table_of("", ("dropped", "count"), dropped or [("nothing", "0")], ("dropped",)))
    if "owners" in found:
        owners = found["owners"]
        console.print(
            f"{owners['owners']:,} owners; {owners['wrote_nothing']:,} are the user of no text. "
            "els keeps at most group_size examples per owner"
        )
        console.print(
            _quantiles({key: owners[key] for key in ("owners_per_example", "examples_per_owner")})
        )
        console.print(_kept(owners["kept"], found["examples"]))
    for doubt in found["doubtful_names"]:
        console.print(f"{Doubt(**doubt).sentence}.", markup=False)
    group = found["group_size"]
    console.print(
        f"group_size of the heuristic for els: {group['els_median']}, the median user "
        f"(keeps {group['els_part_kept']:.0%} of the examples): {group['note']}."
    )
    console.print(found["note"])


def _quantiles(found: dict[str, dict[str, int]]) -> Table:
    levels = next(iter(found.values()))
    heads = ("quantile", *(f"{float(level):.0%}" for level in levels))
    rows = [
        [name.replace("_", " "), *(f"{value:,}" for value in values.values())]
        for name, values in found.items()
    ]
    return table_of("", heads, rows, left=("quantile",))


def _kept(rows: list[dict[str, int]], examples: int) -> Table:
    cells = [
        [
            f"{value}" if key == "group_size" else f"{value:,} ({value / examples:.0%})"
            for key, value in row.items()
        ]
        for row in rows
    ]
    return table_of("Examples kept, by bounding and selection", rows[0], cells)

"""How a plan is shown in the terminal: the object of `--json` as tables and sentences."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsim.report.wording import NOTHING
from fedsim.utils.terminal import table_console, table_of

Facts = dict[str, Any]

_ROWS = (
    ("examples a user (group_size)", "group_size"),
    ("users a round (cohort_size)", "cohort_size"),
    ("examples a round (batch_size)", "batch_size"),
    ("sampling probability", "sampling_probability"),
    ("noise multiplier σ", "noise_multiplier"),
    ("clip norm L", "l2_clip_norm"),
    ("noise stddev, a coordinate", "noise_stddev"),
)


def print_plan(found: Facts) -> None:
    """Print a plan from a config and its data."""
    console = table_console()
    console.print(_strategies(f"B = {found['budget']:,.6g} gradients a round", found))
    console.print(_norms(found["gradient_norms"]["median"]))
    for one in found["strategies"].values():
        console.print(Text(one["statement"]))
    if found["mechanisms"]:
        console.print(_mechanisms(found["mechanisms"]))
        console.print(Text(found["mechanism"]))
    _end(console, found)


def print_owners(found: Facts) -> None:
    """Print a plan for texts with several owners: a row for each group size."""
    console = table_console()
    table = Table(
        *("K (group_size)", "examples kept", "of all", "probability", "σ", "noise, a coordinate"),
        title=f"els, {found['owners']:,} owners, B = {found['budget']:,.6g} gradients a round",
        title_justify="left",
        box=None,
    )
    for row in found["group_sizes"]:
        table.add_row(
            f"{row['group_size']:,}",
            f"{row['examples']:,}",
            f"{row['part']:.0%}",
            *(
                f"{row[key]:.4g}"
                for key in ("sampling_probability", "noise_multiplier", "noise_stddev")
            ),
        )
    console.print(table)
    console.print(Text(found["statement"]))
    _end(console, found)


def _end(console: Console, found: Facts) -> None:
    for sentence in found["notes"]:
        console.print(Text(sentence))
    console.print(Text(f"Recommended: {found['recommendation']['reason']}", style="bold"))


def _strategies(title: str, found: Facts) -> Table:
    strategies: Facts = found["strategies"]
    table = table_of(title, ["", *strategies])
    for label, key in _ROWS:
        if any(key in one for one in strategies.values()):
            table.add_row(label, *(_number(one.get(key)) for one in strategies.values()))
    return table


def _norms(median: dict[str, float]) -> Table:
    table = Table("G", *median, title="L(G): median norm of users' gradients", box=None)
    table.add_row("L(G)", *(f"{norm:.4g}" for norm in median.values()))
    table.add_row("L(1)/L(G)", *(f"{median['1'] / norm:.3g}" for norm in median.values()))
    return table


def _mechanisms(rows: list[Facts]) -> Table:
    table = Table(
        *("", "users", "σ", "noise", "in sums", "at the end"),
        title="uls, other mechanisms at the same promise: users and noise a round, and noise "
        "accumulated over rounds",
        title_justify="left",
        box=None,
    )
    for row in rows:
        keys = ("cohort_size", "noise_multiplier", "noise_stddev", "sum_noise", "last_noise")
        table.add_row(row["name"], *(f"{row[key]:.4g}" for key in keys))
    return table


def _number(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:,}" if isinstance(value, int) else f"{value:,.5g}"

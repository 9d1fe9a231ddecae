"""Show a plan in the terminal: the object of `--json` as tables and sentences."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from fedsim.report.wording import NOTHING
from fedsim.utils.terminal import table_console, table_of

Facts = dict[str, Any]

_ROWS = (
    ("examples per user (group_size)", "group_size"),
    ("users per round (cohort_size)", "cohort_size"),
    ("examples per round (batch_size)", "batch_size"),
    ("sampling probability", "sampling_probability"),
    ("noise multiplier σ", "noise_multiplier"),
    ("clip norm L", "l2_clip_norm"),
    ("noise stddev per coordinate", "noise_stddev"),
)


def print_plan(found: Facts) -> None:
    """Print a plan from a config and its data."""
    console = table_console()
    strategies: Facts = found["strategies"]
    rows = [
        [label, *(_number(one.get(key)) for one in strategies.values())]
        for label, key in _ROWS
        if any(key in one for one in strategies.values())
    ]
    title = f"B = {found['budget']:,.6g} gradients per round"
    console.print(table_of(title, ["", *strategies], rows))
    median = found["gradient_norms"]["median"]
    norms = [
        ["L(G)", *(f"{norm:.4g}" for norm in median.values())],
        ["L(1)/L(G)", *(f"{median['1'] / norm:.3g}" for norm in median.values())],
    ]
    console.print(table_of("L(G): median norm of users' gradients", ["", *median], norms))
    for one in strategies.values():
        console.print(Text(one["statement"]))
    if found["mechanisms"]:
        heads = ("", "users", "σ", "noise", "in sums", "at the end")
        title = (
            "uls, other mechanisms with the same ε and δ: users and noise per round, and noise "
            "accumulated over rounds"
        )
        keys = ("cohort_size", "noise_multiplier", "noise_stddev", "sum_noise", "last_noise")
        console.print(table_of(title, heads, _rows(found["mechanisms"], "name", keys)))
        console.print(Text(found["mechanism"]))
    _end(console, found)


def print_owners(found: Facts) -> None:
    """Print a plan for texts with several owners: a row for each group size."""
    console = table_console()
    heads = (
        *("K (group_size)", "examples kept", "share of all", "probability", "σ"),
        "noise per coordinate",
    )
    title = f"els, {found['owners']:,} owners, B = {found['budget']:,.6g} gradients per round"
    keys = ("examples", "part", "sampling_probability", "noise_multiplier", "noise_stddev")
    console.print(table_of(title, heads, _rows(found["group_sizes"], "group_size", keys)))
    console.print(Text(found["statement"]))
    _end(console, found)


def _end(console: Console, found: Facts) -> None:
    for sentence in found["notes"]:
        console.print(Text(sentence))
    console.print(Text(f"Recommended: {found['recommendation']['reason']}", style="bold"))


def _rows(rows: list[Facts], name: str, keys: tuple[str, ...]) -> list[list[str]]:
    return [[str(row[name]), *(_number(row[key]) for key in keys)] for row in rows]


def _number(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:,}" if isinstance(value, int) else f"{value:,.5g}"

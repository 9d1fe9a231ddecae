"""A comparison as Markdown, CSV, JSON and a table for the terminal."""

from __future__ import annotations

import csv
import html
import io
from typing import Literal

from rich import box
from rich.table import Table
from rich.text import Text

from fedsim.report.comparison import Comparison, Row
from fedsim.report.wording import (
    NOT_COVERED,
    NOTHING,
    TOGETHER,
    count_text,
    decimal_text,
    delta_text,
    duration_text,
    epsilon_text,
    percent_text,
)

COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("run", "left"),
    ("strategy", "left"),
    ("held-out loss", "right"),
    ("perplexity", "right"),
    ("top-1 accuracy", "right"),
    ("ε", "right"),
    ("δ", "right"),
    ("σ (noise multiplier)", "right"),
    ("unit", "left"),
    ("gradients", "right"),
    ("time", "right"),
)
# A terminal has 80 columns: heads as short as the numbers under them.
TERMINAL_HEADS = ("run", "loss", "ppl", "top-1", "ε", "δ", "σ", "unit", "grads", "time")
UTILITY_NOTE = f"Loss (nats a token), perplexity, top-1 accuracy and gradients: {NOT_COVERED}."


def cells(row: Row) -> list[str]:
    """Return the row as displayed, a cell for each of `COLUMNS`.

    A run without a guarantee has "none" for ε; a starting point, which released nothing, a dash.
    """
    epsilon = "none" if row.kind == "run" and row.epsilon is None else epsilon_text(row.epsilon)
    if row.hypothetical:
        epsilon += " (hypothetical)"
    return [
        row.label,
        row.strategy or NOTHING,
        "diverged" if row.diverged else decimal_text(row.loss),
        NOTHING if row.diverged else decimal_text(row.perplexity, 2),
        NOTHING if row.diverged else percent_text(row.accuracy_top1),
        epsilon,
        # A δ without an ε would suggest a guarantee.
        delta_text(row.delta) if row.epsilon is not None else NOTHING,
        decimal_text(row.noise_multiplier),
        row.unit if row.unit is not None and row.epsilon is not None else NOTHING,
        count_text(row.gradients),
        NOTHING if row.seconds is None else duration_text(row.seconds),
    ]


def reading_notes(comparison: Comparison) -> list[str]:
    """Return what is to be known of every such table."""
    several = sum(run.privacy.epsilon is not None for run in comparison.runs) > 1
    return [UTILITY_NOTE, TOGETHER] if several else [UTILITY_NOTE]


def to_markdown(comparison: Comparison) -> str:
    """Return a pipe table with the terms of each ε, and the notes, as a list below it."""
    head = [name for name, _ in COLUMNS]
    rule = ["---:" if side == "right" else ":---" for _, side in COLUMNS]
    body = [[escape_markdown(cell) for cell in cells(row)] for row in comparison.rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *body))
    lines = [*comparison.captions, *reading_notes(comparison), *comparison.notes]
    return table + "\n\n" + "\n".join(f"- {escape_markdown(line)}" for line in lines) + "\n"


def to_csv(comparison: Comparison) -> str:
    """Return every field of every row at full precision; absent values are empty cells."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(Row.model_fields), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.model_dump() for row in comparison.rows)
    return stream.getvalue()


def to_json(comparison: Comparison) -> str:
    """Return the whole comparison; `Comparison.model_validate_json` reads it back."""
    return comparison.model_dump_json(indent=2) + "\n"


def to_rich(comparison: Comparison) -> Table:
    """Return a table for the terminal, with the terms of each ε as its caption.

    The strategy stands behind the run's name, where the name does not contain it.
    """
    lines = [*comparison.captions, *reading_notes(comparison), *comparison.notes]
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        caption=Text("\n".join(lines)),
        caption_justify="left",
    )
    sides = [side for name, side in COLUMNS if name != "strategy"]
    for side, name in zip(sides, TERMINAL_HEADS, strict=True):
        # Fold: in a narrow terminal a number goes on in the next line and loses no digit.
        table.add_column(name, justify=side, overflow="fold")
    for row in comparison.rows:
        style = "dim" if row.kind == "start" else None
        # Text, not str: a label is data, and "[red]" in it is not a command.
        label, strategy, *numbers = cells(row)
        name = label if row.strategy is None or row.strategy in label else f"{label} ({strategy})"
        table.add_row(*(Text(cell) for cell in (name, *numbers)), style=style)
    return table


def escape_markdown(text: str) -> str:
    """Keep a name from ending its cell, its line, or being read as HTML."""
    escaped = html.escape(" ".join(text.split()), quote=False)
    return escaped.replace("\\", "\\\\").replace("|", "\\|").replace("`", "\\`")

"""What every study leaves behind: table.csv, table.md and picture.png, and a table to look at."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from fedsim.accounting.rounding import round_up
from fedsim.errors import ConfigError
from fedsim.report.style import INK, MUTED, RULE
from fedsim.utils.files import write_atomically

Step = TypeVar("Step")

FILES = {
    "table.csv",
    "table.md",
    "picture.png",
    "lemma_1.csv",
    "concentration.csv",
    "suboptimality.csv",
    "measurement.json",
    "comparison.csv",
    "comparison.html",
    "comparison.json",
    "comparison.md",
    "comparison.png",
    "runs",
}
DPI = 160


@dataclass(frozen=True)
class Shown:
    """A table as people read it: cells are texts; the CSV has the numbers."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Study:
    """A finished study.

    Attributes:
        name: as registered.
        title: one line that says what is seen.
        explanation: paragraphs: what is shown, and of which paper's section.
        settings: everything that was fixed, and what each ε is an ε of.
        findings: sentences made from the numbers.
        table: for people.
        records: for programs; rows of `table.csv` with the same keys, at full precision.
        figure: `picture.png`.
    """

    name: str
    title: str
    explanation: Sequence[str]
    settings: Sequence[str]
    findings: Sequence[str]
    table: Shown
    records: Sequence[Mapping[str, object]]
    figure: Figure


def check_folder(out: Path) -> None:
    """Make the folder before the work begins.

    Raises:
        ConfigError: it cannot be made, or holds something that no study wrote.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error}") from None
    if strangers := sorted({path.name for path in out.iterdir()} - FILES):
        raise ConfigError(
            f"--out {out}: holds {strangers[0]!r}, which no study wrote; name a new folder"
        )


def write_study(study: Study, out: Path, *, quick: bool) -> None:
    """Write the three files into `out`, replacing a former study's, and print the table."""
    write_atomically(out / "table.csv", to_csv(study.records))
    write_atomically(out / "table.md", to_markdown(study, quick=quick))
    stream = io.BytesIO()
    study.figure.savefig(stream, format="png", dpi=DPI)
    write_atomically(out / "picture.png", stream.getvalue())
    console = Console()
    console.print(Text(study.title, style="bold"), to_rich(study))
    for sentence in (*study.findings, *study.settings):
        console.print(Text(sentence))
    console.print(Text(f"Table: {out / 'table.md'}   Picture: {out / 'picture.png'}"))


def to_csv(records: Sequence[Mapping[str, object]]) -> str:
    """Return records as CSV; floats in the shortest form that reads back to the same number."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return stream.getvalue()


def to_markdown(study: Study, *, quick: bool) -> str:
    """Return the study as a page: what, with what, what came out, and the table."""
    command = f"fedsim study {study.name}{' --quick' if quick else ''}"
    page = [f"# {study.title}", *study.explanation, "![the picture](picture.png)", "## Settings"]
    page.append("\n".join(f"- {line}" for line in (*study.settings, f"Made by `{command}`.")))
    page += ["## Findings", "\n".join(f"- {line}" for line in study.findings)]
    lines = [study.table.heads, ["---:"] * len(study.table.heads), *study.table.rows]
    page += ["## Table", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join(page) + "\n"


def to_rich(study: Study) -> Table:
    """Return the table for a terminal."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for head in study.table.heads:
        table.add_column(head, justify="right", overflow="fold")
    for row in study.table.rows:
        table.add_row(*map(Text, row))
    return table


def steps(work: Sequence[Step], description: str) -> Iterable[Step]:
    """Iterate over the work with a bar on standard error, if that is a terminal."""
    console = Console(stderr=True)
    return track(work, description, console=console, disable=not console.is_terminal)


def new_figure(width: float, height: float, title: str, note: str) -> Figure:
    """Return an empty figure, in inches, with a title above and a note of the terms below."""
    figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    wrapped = "\n".join(textwrap.wrap(note, int(width * 17)))
    figure.supxlabel(wrapped, x=0.01, ha="left", fontsize=7.5, color=MUTED)
    return figure


def clean(axes: Axes, title: str = "") -> None:
    """Take away what carries no information, and rule lightly."""
    axes.set_title(title, loc="left", fontsize=9, color=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("bottom", "left"):
        axes.spines[side].set_color(MUTED)
    axes.tick_params(which="both", colors=MUTED, labelsize=8, labelcolor=INK)
    axes.grid(which="major", color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)


def number(value: float) -> str:
    """Return four significant digits, or a whole number of thousands."""
    return f"{value:,.0f}" if value >= 1e4 else f"{value:.4g}"


def epsilon_number(value: float) -> str:
    """Return ε with four significant digits, rounded up."""
    return f"{round_up(value, 4):g}"

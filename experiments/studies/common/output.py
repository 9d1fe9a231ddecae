"""Studies: their results, and the table, page and picture that they write."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.progress import track
from rich.text import Text

from fedsim.accounting.rounding import round_up
from fedsim.errors import ConfigError
from fedsim.report import tables
from fedsim.report.drawing import FORMS
from fedsim.report.style import INK, MUTED, RULE
from fedsim.utils.files import write_atomically
from fedsim.utils.locks import LOCK, sole_writer
from fedsim.utils.terminal import every_half_minute, progress_console, table_console

Step = TypeVar("Step")
Records = Sequence[Mapping[str, Any]]
Share = bool | Literal["none", "all", "row", "col"]
Form = str | Callable[[Any], str]

FILES = {
    "table.csv",
    "table.md",
    *(f"picture.{form}" for form in FORMS),
    "lemma_1.csv",
    "concentration.csv",
    "bounding.csv",
    "suboptimality.csv",
    "recommendations.csv",
    "measurement.json",
    *(f"comparison.{form}" for form in ("csv", "html", "json", "md", "tex", *FORMS)),
    "comparison-caption.tex",
    "comparison-differences.tex",
    "runs",
    LOCK,
}
DPI = 160


@dataclass(frozen=True)
class Table(tables.Table):
    """A table for readers, with right-aligned columns."""

    left: Collection[int] = ()

    @classmethod
    def of(cls, records: Records, columns: Mapping[str, tuple[str, Form]]) -> Table:
        """Return a table of records.

        Args:
            records: one record per row.
            columns: map from a head to the key of its values and their format: a format
                specification or a function.
        """
        rows = [
            [
                form(record[key]) if callable(form) else format(record[key], form)
                for key, form in columns.values()
            ]
            for record in records
        ]
        return cls([*columns], rows)


@dataclass(frozen=True)
class Result:
    """Results of a study.

    Attributes:
        settings: sentences on all fixed settings, and on the terms of each ε.
        table: table of the page.
        records: rows of `table.csv` with the same keys, at full precision.
        figure: figure of `picture.png`.
        notes: one-line counts and means over the rows.
        more: further CSV files by name, each as records.
        further: further tables of the page, by their head.
    """

    settings: Sequence[str]
    table: Table
    records: Records
    figure: Figure
    notes: Sequence[str] = ()
    more: Mapping[str, Records] = field(default_factory=dict)
    further: Mapping[str, tables.Table] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A study, as registered under `fedsim.studies`; a call runs it.

    Attributes:
        name: registered name.
        title: one line on the comparison.
        explanation: Markdown on the result and the paper's section; the module's docstring.
        compute: function that computes the result, quick or whole.
        options: command-line options, as shown on the page.
    """

    name: str
    title: str
    explanation: str | None
    compute: Callable[[bool], Result]
    options: str = ""

    def __call__(self, out: Path, *, quick: bool) -> None:
        """Compute the result, and write table, page and picture into `out`.

        Raises:
            ConfigError: `out` is not a folder for a study, or another process is using it.
        """
        check_folder(out)
        with sole_writer(out):
            result = self.compute(quick)
            self.write(result, out, quick=quick)
            self.show(result, out)

    def write(self, result: Result, out: Path, *, quick: bool) -> None:
        """Write the files into `out`, replacing those of an earlier run."""
        # Each ε needs its terms, unless the columns already state them.
        named = [text for text in result.settings if "unit: user" in text]
        terms = {"terms": named[0]} if named else {}
        for name, records in {**result.more, "table.csv": result.records}.items():
            own = any({"relation", "terms"} & record.keys() for record in records)
            rows = records if own else [{**record, **terms} for record in records]
            write_atomically(out / name, tables.to_csv(rows))
        write_atomically(out / "table.md", self.page(result, quick=quick))
        for form in FORMS:
            stream = io.BytesIO()
            result.figure.savefig(stream, format=form, dpi=DPI)
            write_atomically(out / f"picture.{form}", stream.getvalue())

    def show(self, result: Result, out: Path) -> None:
        """Print table, counts and settings, and the paths of the files in `out`."""
        console = table_console()
        console.print(Text(self.title, style="bold"), result.table.rich())
        for sentence in (*result.notes, *result.settings):
            console.print(Text(sentence))
        console.print(Text(f"Table: {out / 'table.md'}   Picture: {out / 'picture.png'}"))

    def page(self, result: Result, *, quick: bool) -> str:
        """Return the study as Markdown: title, explanation, settings, counts and table."""
        command = f"fedsim study {self.name}{self.options}{' --quick' if quick else ''}"
        made = [f"Made by `{command}`."]
        if quick:
            made.append(
                "This was a quick run: sizes, rounds and seeds may be smaller than the text says."
            )
        lists = {"Settings": (*result.settings, *made), "Notes": result.notes}
        parts = [f"# {self.title}", (self.explanation or "").strip(), "![the picture](picture.png)"]
        for head, lines in lists.items():
            if lines:
                parts += [f"## {head}", "\n".join(f"- {line}" for line in lines)]
        for head, shown in {"Table": result.table, **result.further}.items():
            parts += [f"## {head}", shown.markdown().strip()]
        return "\n\n".join(parts) + "\n"


def study(
    name: str, title: str, explanation: str | None
) -> Callable[[Callable[[bool], Result]], Study]:
    """Return a decorator that turns a function of `quick` into a `Study`."""
    return lambda compute: Study(name, title, explanation, compute)


def study_of_runs(
    name: str, title: str, explanation: str | None
) -> Callable[[Callable[[Path, bool], Result]], Callable[..., None]]:
    """Return a decorator that turns a function of (folder of runs, `quick`) into a study.

    Finished runs in `out/runs` are not repeated. A call raises `ConfigError` if `out` is not a
    folder for a study, or has runs of another version.
    """

    def made(compute: Callable[[Path, bool], Result]) -> Callable[..., None]:
        def run(out: Path, *, quick: bool) -> None:
            Study(name, title, explanation, partial(compute, out / "runs"))(out, quick=quick)

        return run

    return made


def check_folder(out: Path) -> None:
    """Create the folder before the work begins.

    Raises:
        ConfigError: it cannot be created, or has a file that is not from a study.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error}") from None
    if strangers := sorted({path.name for path in out.iterdir()} - FILES):
        raise ConfigError(
            f"--out {out}: holds {strangers[0]!r}, which is not from a study; give a new folder"
        )


def steps(work: Sequence[Step], description: str) -> Iterator[Step]:
    """Iterate over the work, with a progress bar on standard error or a log line every 30 s."""
    console = progress_console()
    if console.is_terminal:
        yield from track(work, description, console=console)
        return
    tell = every_half_minute(description)
    for number, step in enumerate(work):
        tell(f"{number} of {len(work)}")
        yield step


def new_figure(width: float, height: float, title: str, note: str) -> Figure:
    """Return an empty figure, in inches, with a title above and a note of the terms below.

    A note of more than three lines makes the figure taller.
    """
    first = note[0].upper() if note[0].isascii() else note[0]  # Greek letters stay lower case
    note = f"{first}{note[1:].removesuffix('.')}."
    lines = textwrap.wrap(note, int(width * 17))
    height += 0.14 * max(0, len(lines) - 3)
    figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=7.5, color=MUTED)
    return figure


def panels(
    size: tuple[float, float],
    title: str,
    note: str,
    heads: Sequence[Sequence[str]],
    *,
    x: str | Sequence[str],
    y: str,
    share: tuple[Share, Share] = (False, True),
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a panel for each head, and the panels in row order.

    Args:
        size: width and height, in inches.
        title: title of the figure.
        note: note below the figure, with the terms.
        heads: titles of the panels, by row.
        x: label of the x axis below the last row, for all columns or for each.
        y: label of the y axis left of the first column.
        share: matplotlib's `sharex` and `sharey`.
    """
    figure = new_figure(*size, title, note)
    shape = len(heads), len(heads[0])
    grid = figure.subplots(*shape, squeeze=False, sharex=share[0], sharey=share[1])
    labels = [x] * shape[1] if isinstance(x, str) else x
    for i, row in enumerate(heads):
        for j, head in enumerate(row):
            below = labels[j] if i == shape[0] - 1 else ""
            clean(grid[i, j], head, x=below, y=y if j == 0 else "")
    return figure, list(grid.flat)


def clean(axes: Axes, title: str = "", *, x: str = "", y: str = "") -> None:
    """Set title and labels, remove the upper and right border, and draw a light grid."""
    axes.set_title(title, loc="left", fontsize=9, color=INK)
    axes.set_xlabel(x, fontsize=8, color=INK)
    axes.set_ylabel(y, fontsize=8, color=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("bottom", "left"):
        axes.spines[side].set_color(MUTED)
    axes.tick_params(which="both", colors=MUTED, labelsize=8, labelcolor=INK)
    axes.grid(which="major", color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)


def legend(figure: Figure, source: Axes | Sequence[Artist]) -> None:
    """Draw the legend of axes, or of given artists, to the right of all panels."""
    if isinstance(source, Axes):
        handles, _ = source.get_legend_handles_labels()
    else:
        handles = list(source)
    figure.legend(handles=handles, loc="outside right center", fontsize=8, frameon=False)


def listed(values: Iterable[float]) -> str:
    """Return numbers as a list: `0.5, 2, 8`."""
    return ", ".join(f"{value:g}" for value in values)


def number(value: float) -> str:
    """Return four significant digits, or a whole number of thousands."""
    return f"{value:,.0f}" if value >= 1e4 else f"{value:.4g}"


def epsilon_number(value: float) -> str:
    """Return ε with four significant digits, rounded up."""
    return f"{round_up(value, 4):g}"

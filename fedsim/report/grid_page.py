"""Tables, picture and page of a comparison: losses over rounds, ε and budgets, or in rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from fedsim.report.attack_table import attack_panel, attack_table
from fedsim.report.differences import differences_table
from fedsim.report.figures import (
    Axis,
    Chart,
    Panel,
    Point,
    Series,
    in_rows,
    start_levels,
)
from fedsim.report.grid_result import (
    CellResult,
    GridResult,
    alike,
    captions,
    grid_table,
    line_labels,
    terms,
)
from fedsim.report.html import panels_over_rounds, render_page
from fedsim.report.labels import BUDGET, EPSILON, label_parts
from fedsim.report.schema import Privacy, is_finite
from fedsim.report.style import colour, dash, shorten
from fedsim.report.tables import UTILITY_NOTE, Table
from fedsim.report.wording import epsilon_cell

LOSS = "held-out loss, nats per token"

Over = Literal["epsilon", "budget"]
LABELS = {"epsilon": EPSILON, "budget": BUDGET}
TITLES: dict[Over, tuple[str, str]] = {
    "epsilon": ("Privacy and loss", "ε (logarithmic)"),
    "budget": ("Compute and loss", "expected gradients per round (logarithmic)"),
}


def grid_tables(result: GridResult) -> dict[str, Table]:
    """Return the table, and those of differences and attacks if any, by a file name's suffix."""
    others = {
        "-differences": differences_table(result),
        "-attacks": attack_table(result.attacks),
    }
    return {"": grid_table(result), **{suffix: one for suffix, one in others.items() if one}}


def render_grid(result: GridResult) -> str:
    """Return a page that opens offline."""
    return render_page(
        "grid.html.jinja",
        result=result,
        promises=promises(result),
        tables=grid_tables(result),
        groups=grid_panels(result),
    )


def grid_chart(result: GridResult) -> Chart:
    """Return the picture: the page's panels, except those of ε and of attackers over rounds."""
    groups = [
        [panel for panel in panels if panel.key not in ("epsilon", "trade-off")]
        for _, panels in grid_panels(result)
    ]
    missing = [note for note in captions(result) if note.startswith(("Stopped early", "Failed"))]
    notes = [*terms(result.lines), *missing, UTILITY_NOTE]
    return Chart([row for panels in groups for row in in_rows(panels)], notes)


def promises(result: GridResult) -> list[tuple[str, Privacy, list[float]]]:
    """Return label, privacy block and all ε, for each group of lines with the same terms."""
    return [
        (label, line.privacy, sorted({line.epsilon for line in lines if line.epsilon is not None}))
        for label, lines in alike(result.lines)
        for line in lines[:1]
        if line.privacy
    ]


def grid_panels(result: GridResult) -> list[tuple[str, list[Panel]]]:
    """Return titled panels: over rounds for single runs, and over ε and budgets if these vary.

    If neither ε nor budget varies, a panel has one row per line. Lines with no finite loss, or a
    loss far above the start, appear only in the table.
    """
    groups = [
        (title, _panels(result.lines, over))
        for over, (title, _) in TITLES.items()
        if _values(result.lines, over)
    ]
    rows = [] if groups else [_rows(result.lines)]
    if not result.runs:
        return groups or [("Loss", rows)]
    runs = [(label, run.report, run.evaluated) for label, run in result.runs.items()]
    attacks = [attack_panel(result.attacks)] if result.attacks else []
    return [("Plots", [*panels_over_rounds(runs), *rows, *attacks]), *groups]


def _values(lines: Sequence[CellResult], over: Over) -> list[float]:
    """Return the grid's requested values of ε or budget, if there are several."""
    values = sorted({value for line in lines if (value := _requested(line, over))})
    return values if len(values) > 1 else []


def _requested(line: CellResult, over: Over) -> float | None:
    """Return the ε or the budget that the grid set for the line, or None."""
    texts = [line.settings[label] for label in LABELS[over] if label in line.settings]
    try:
        value = float(texts[0])
    except (IndexError, ValueError):
        return None
    return value if 0 < value < math.inf else None


def _curve_labels(lines: Sequence[CellResult]) -> dict[str, str]:
    """Map each line's name to a label of its settings, without ε and budget."""
    arms = [
        (line.source, {k: v for k, v in line.settings.items() if k not in (*EPSILON, *BUDGET)})
        for line in lines
    ]
    return {line.name: ", ".join(part) for line, part in zip(lines, label_parts(arms), strict=True)}


def _panels(lines: Sequence[CellResult], over: Over) -> list[Panel]:
    """Return one panel per value of the other setting (Charles et al. 2024, §5).

    A line without a value of the other setting appears in all panels. Its position is the ε or
    budget that it reached; over ε, a line without a guarantee spans the panel.
    """
    other: Over = "budget" if over == "epsilon" else "epsilon"
    ticks, (title, label) = _values(lines, over), TITLES[over]
    at: dict[str, float | None] = {}
    for line in lines:
        reached = line.epsilon if over == "epsilon" else line.budget
        at[line.name] = reached if reached and is_finite(reached) else _requested(line, over)
    places = [*ticks, *filter(None, at.values())]
    room = (max(places) / min(places)) ** 0.07
    limits = (min(places) / room, max(places) * room)
    labels = _curve_labels(lines)
    curves = list(dict.fromkeys(labels.values()))
    heading = "ε = {:g}" if over == "budget" else "{:g} gradients per round"
    others: list[float | None] = [*_values(lines, other)] or [None]
    panels = []
    for number, held in enumerate(others):
        inside = [line for line in lines if held is None or _requested(line, other) in (held, None)]
        series = []
        for index, name in enumerate(curves):
            drawn = [line for line in inside if line.loss and labels[line.name] == name]
            level = over == "epsilon" and bool(drawn) and drawn[0].epsilon is None
            points = [_point(at[line.name] or ticks[0], line) for line in drawn]
            if level:
                points = [points[0]._replace(at=place) for place in limits]
            drawn_as = Series(shorten(name, 44), sorted(points), colour(index), dash(index))
            series.append(replace(drawn_as, marks=not level, band=True))
        panels.append(
            Panel(
                f"{over}-{number}",
                title if held is None else heading.format(held),
                "",
                [one for one in series if one.points],
                x=Axis(label, log=True, limits=limits, ticks=ticks),
                y=Axis(LOSS, limits=_loss_limits(lines)),
                levels=start_levels(line.start for line in inside),
            )
        )
    return panels


def _rows(lines: Sequence[CellResult]) -> Panel:
    labels = line_labels(lines)
    low, high = _loss_limits(lines)
    return Panel(
        "lines",
        "Final held-out loss",
        "",
        [
            Series(shorten(labels[line.name], 44), [_point(row, line)], colour(row), marks=True)
            for row, line in enumerate(lines)
            if line.loss
        ],
        x=Axis(LOSS, limits=(low, high + 0.15 * (high - low))),  # room for the start's label
        levels=start_levels(line.start for line in lines),
        rows=[
            shorten(labels[line.name], 40)
            + (f" · {line.loss.mean:.2f}" if line.loss else "")
            + ("" if line.epsilon is None else f" · ε = {epsilon_cell(line.privacy)}")
            for line in lines
        ],
    )


def _point(at: float, line: CellResult) -> Point:
    loss = line.loss
    return Point(at, loss.mean, loss.low, loss.high) if loss else Point(at, math.nan)


def _loss_limits(lines: Iterable[CellResult]) -> tuple[float, float]:
    """Return the range of losses to show; without a finite loss, 0 to 1.

    The range above the worst start is at most as large as the gain below it. So an exploded loss
    does not flatten the others.
    """
    means = [line.loss.mean for line in lines if line.loss and is_finite(line.loss.mean)]
    starts = [line.start for line in lines if line.start is not None and is_finite(line.start)]
    if not means:
        return (0.0, 1.25 * max(starts)) if starts else (0.0, 1.0)
    best, start = min(means), max(starts or means)
    gain = max(start - best, 0.02 * abs(start), 1e-6)
    worst = min(max(*means, start), start + gain)
    room = 0.15 * max(worst - best, gain)
    return best - room, worst + room

"""A measured grid drawn: loss over ε and over budgets, or a row for each line, and its page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from fedsim.report.figures import (
    UNCOVERED,
    Axis,
    Chart,
    Cross,
    Level,
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
    grid_table,
    interval_note,
    seed_counts,
    stopped_texts,
    terms,
)
from fedsim.report.html import render_page
from fedsim.report.schema import Privacy, is_finite
from fedsim.report.style import colour, dash, shorten
from fedsim.report.tables import UTILITY_NOTE
from fedsim.report.wording import (
    epsilon_cell,
    guarantee_text,
    privacy_facts,
)

LOSS = "held-out loss, nats a token"
CROSS_ROW = 0.075  # of the height, for a cross and its text

Over = Literal["epsilon", "budget"]
# Labels of the setting in a grid: the last part of its key, or all of it if two end alike.
LABELS = {"epsilon": ("epsilon", "privacy.epsilon"), "budget": ("budget",)}
TITLES: dict[Over, tuple[str, str]] = {
    "epsilon": ("Privacy and loss", "ε (logarithmic)"),
    "budget": ("Compute and loss", "expected gradients a round (logarithmic)"),
}


class Promise(NamedTuple):
    """The promise of lines of one config and the same terms, and the facts that they share."""

    label: str
    headline: str
    privacy: Privacy
    facts: list[tuple[str, str]]


def render_grid(result: GridResult) -> str:
    """Return a page that opens offline."""
    return render_page(
        "grid.html.jinja",
        result=result,
        promises=promises(result),
        table=grid_table(result),
        terms=terms(result.lines),
        notes=(interval_note(result.lines), UTILITY_NOTE, *stopped_texts(result)),
        groups=grid_panels(result),
        uncovered=UNCOVERED,
        runs=[run for line in result.lines for run in runs(line)],
        failures=[reason for line in result.lines for reason in line.failures],
    )


def grid_chart(result: GridResult) -> Chart:
    """Return the picture: a row of panels over ε and one over budgets, or a row for each line."""
    lost = {
        "runs stopped early; no mean has them": sum(len(line.stopped) for line in result.lines),
        "runs failed": sum(len(line.failures) for line in result.lines),
    }
    return Chart(
        [row for _, panels in grid_panels(result) for row in in_rows(panels)],
        [
            *(f"{text}." for text in terms(result.lines)),
            interval_note(result.lines),
            UNCOVERED,
            *([] if result.tuning is None else [result.tuning.statement]),
            *(f"{count} {what}." for what, count in lost.items() if count),
            *result.notes,
        ],
    )


def promises(result: GridResult) -> list[Promise]:
    """Return the promise of each config's lines; lines without an ended run promise nothing."""
    found = []
    for label, lines in alike(result.lines):
        kept = [line.privacy for line in lines if line.privacy is not None]
        facts = [fact for fact in privacy_facts(kept[0]) if _common(fact, kept)]
        epsilons = sorted({privacy.epsilon for privacy in kept if privacy.epsilon is not None})
        found.append(Promise(label, guarantee_text(kept[0], epsilons), kept[0], facts))
    return found


def _common(fact: tuple[str, str], promised: Sequence[Privacy]) -> bool:
    return all(fact in privacy_facts(privacy) for privacy in promised)


def runs(line: CellResult) -> list[tuple[str, str]]:
    """Return every run of a line and its loss, then the failures."""
    ended = [
        (f"{line.name},seed={seed}", f"{loss:.4f}" if math.isfinite(loss) else "diverged")
        for seed, loss in zip(line.seeds, line.losses, strict=True)
    ]
    return [*ended, *((line.name, f"failed: {reason}") for reason in line.failures)]


def grid_panels(result: GridResult) -> list[tuple[str, list[Panel]]]:
    """Return titled panels over ε and over budgets, of those that vary, else a row a line.

    A result that failed, diverged or lies far above the start is a cross that says so.
    """
    groups = [
        (title, _panels(result.lines, over))
        for over, (title, _) in TITLES.items()
        if _values(result.lines, over)
    ]
    return groups or [("Loss", [_rows(result.lines)])]


def _values(lines: Sequence[CellResult], over: Over) -> list[float]:
    """Return the values of ε or budget that a grid asked for, if there are several."""
    values = sorted({value for line in lines if (value := _requested(line, over))})
    return values if len(values) > 1 else []


def _requested(line: CellResult, over: Over) -> float | None:
    """Return the ε or the budget that the grid set, None where it set none."""
    texts = [line.settings[label] for label in LABELS[over] if label in line.settings]
    try:
        value = float(texts[0])
    except (IndexError, ValueError):
        return None
    return value if 0 < value < math.inf else None


def _place(line: CellResult, over: Over) -> float | None:
    """Return the ε or budget that was reached, or the requested one where nothing ran."""
    reached = line.epsilon if over == "epsilon" else line.budget
    return reached if reached and is_finite(reached) else _requested(line, over)


def _curve_label(line: CellResult) -> str:
    """Return the config's name with the settings that are neither ε nor budget."""
    axes = {label for labels in LABELS.values() for label in labels}
    others = [f"{key} = {value}" for key, value in line.settings.items() if key not in axes]
    return ", ".join([line.source, *others])


def _panels(lines: Sequence[CellResult], over: Over) -> list[Panel]:
    """Return a panel for each value of the other setting (Charles et al. 2024, §5).

    Every line is in a panel, also a failed one. A line to which the grid gave no such value is in
    all of them.
    """
    other: Over = "budget" if over == "epsilon" else "epsilon"
    values: list[float | None] = [*_values(lines, other)] or [None]
    parts = [
        (held, [line for line in lines if held is None or _requested(line, other) in (held, None)])
        for held in values
    ]
    ticks, (title, label) = _values(lines, over), TITLES[over]
    at = {line.name: _place(line, over) or ticks[0] for line in lines}
    low, high = min(*at.values(), *ticks), max(*at.values(), *ticks)
    room = (high / low) ** 0.07
    limits, span = (low / room, high * room), _loss_limits(lines)
    across = (limits[0], *ticks, limits[1]) if over == "epsilon" else ()
    # Room above the losses for the name of the start and the crosses of any panel.
    problems = max(sum(bool(_problem(line, span)) for line in inside) for _, inside in parts)
    top = span[0] + (span[1] - span[0]) / max(1 - CROSS_ROW * (1 + problems), 0.4)
    curves = list(dict.fromkeys(map(_curve_label, lines)))
    heading = "ε = {:g}" if over == "budget" else "{:g} gradients a round"
    return [
        Panel(
            f"{over}-{number}",
            title if held is None else heading.format(held),
            _caption(inside, lines),
            [
                _series(name, index, drawn, at, across)
                for index, name in enumerate(curves)
                if (drawn := [o for o in inside if _curve_label(o) == name and _visible(o, span)])
            ],
            x=Axis(label, log=True, limits=limits, ticks=ticks),
            y=Axis(LOSS, limits=(span[0], top)),
            levels=_starts(inside),
            crosses=[
                Cross(
                    at[line.name],
                    top - (top - span[0]) * CROSS_ROW * (row + 0.5),
                    f"{shorten(_curve_label(line), 24)}: {_problem(line, span)}",
                    colour(curves.index(_curve_label(line))),
                    _tip(line),
                )
                for row, line in enumerate(o for o in inside if _problem(o, span))
            ],
        )
        for number, (held, inside) in enumerate(parts)
    ]


def _series(
    name: str,
    index: int,
    lines: Sequence[CellResult],
    at: Mapping[str, float],
    across: Sequence[float],
) -> Series:
    """Return the curve of some lines; over ε, a line without a guarantee goes all across."""
    points = sorted(_point(at[line.name], line) for line in lines)
    level = bool(across) and lines[0].epsilon is None
    if level:
        points = [points[0]._replace(at=place) for place in across]
    hue = colour(index)
    return Series(shorten(name, 44), points, hue, dash(index), marks=not level, band=True)


def _rows(lines: Sequence[CellResult]) -> Panel:
    span = _loss_limits(lines)
    return Panel(
        "lines",
        "Held-out loss",
        _caption(lines, lines),
        [
            Series(shorten(line.name, 44), [_point(row, line)], colour(row), marks=True)
            for row, line in enumerate(lines)
            if _visible(line, span)
        ],
        x=Axis(LOSS, limits=span),
        levels=_starts(lines),
        crosses=[
            Cross(row, span[1], text, colour(row), _tip(line))
            for row, line in enumerate(lines)
            if (text := _problem(line, span))
        ],
        rows=[
            shorten(line.name, 40) + ("" if line.epsilon is None else f", {_epsilon(line)}")
            for line in lines
        ],
    )


def _point(at: float, line: CellResult) -> Point:
    loss = line.loss
    return Point(at, loss.mean, loss.low, loss.high, _tip(line)) if loss else Point(at, math.nan)


def _visible(line: CellResult, span: tuple[float, float]) -> bool:
    return line.loss is not None and span[0] <= line.loss.mean <= span[1]


def _problem(line: CellResult, span: tuple[float, float]) -> str:
    """Return the text of a line's cross: what failed, diverged, or is off the scale."""
    total = len(line.losses) + len(line.failures)
    parts = []
    if line.failures:
        parts.append(f"{len(line.failures)} of {total} failed")
    if line.num_diverged:
        parts.append(f"{line.num_diverged} of {total} diverged")
    if line.loss is not None and not _visible(line, span):
        parts.append(f"loss {line.loss.mean:.4g}")
    return ", ".join(parts)


def _tip(line: CellResult) -> str:
    """Return all that a point stands for: the loss, and its ε with its terms."""
    parts = [shorten(line.name, 70)]
    if line.loss is not None:
        parts.append(f"held-out loss {line.loss.mean:.4f}")
        if line.num_averaged > 1:
            parts.append(f"95 % interval {line.loss.low:.4f} to {line.loss.high:.4f}")
    seeds, *others = seed_counts(line)
    parts += [f"{seeds} seeds", *others]
    parts += [shorten(f"failed: {reason}", 90) for reason in line.failures]
    if line.budget is not None:
        parts.append(f"{line.budget:,.1f} expected gradients a round")
    if line.epsilon is not None:
        parts.append(_epsilon(line))
    return "\n".join([*parts, *filter(None, line.terms.split("; "))])


def _epsilon(line: CellResult) -> str:
    return f"ε = {epsilon_cell(line.privacy)}"


def _loss_limits(lines: Iterable[CellResult]) -> tuple[float, float]:
    """Return a range of losses from the best mean to the worst start and as much again above.

    A loss that blew up does not flatten the others. Without any finite loss, 0 to 1.
    """
    lines = list(lines)
    means = [line.loss.mean for line in lines if line.loss and is_finite(line.loss.mean)]
    starts = [line.start for line in lines if line.start is not None and is_finite(line.start)]
    if not means:
        return (0.0, 1.25 * max(starts)) if starts else (0.0, 1.0)
    level = max(starts or means)
    room = max(level - min(means), 0.02 * abs(level), 1e-6)
    highest, lowest = level + room, min(means) - room
    ends = [end for line in lines if line.loss for end in (line.loss.low, line.loss.high)]
    shown = [min(max(end, lowest), highest) for end in (*means, *starts, *ends)]
    pad = 0.06 * (max(shown) - min(shown))
    return min(shown) - pad, max(shown) + pad


def _starts(lines: Iterable[CellResult]) -> list[Level]:
    """Return a level for each start; equal up to the sixth digit counts as the same."""
    starts = (line.start for line in lines if line.start is not None)
    return start_levels({f"{start:.6g}": start for start in starts}.values())


def _caption(shown: Iterable[CellResult], lines: Sequence[CellResult]) -> str:
    names = {line.name for line in shown}
    groups = [(label, of) for label, of in alike(lines) if any(one.name in names for one in of)]
    return " ".join([*(f"{label}: {of[0].terms}." for label, of in groups), UNCOVERED])

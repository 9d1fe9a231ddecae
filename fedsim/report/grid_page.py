"""The page of a measured grid: what is promised, the table, plots to hover over, every run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedsim.report.grid_charts import UNCOVERED, grid_panels
from fedsim.report.grid_result import (
    CellResult,
    GridResult,
    alike,
    grid_table,
    interval_note,
    stopped_texts,
    terms,
)
from fedsim.report.html import render_page
from fedsim.report.plots import plots
from fedsim.report.tables import UTILITY_NOTE
from fedsim.report.wording import (
    NO_GUARANTEE,
    NOISE_TEXTS,
    NOTHING,
    decimal_text,
    delta_text,
    epsilon_text,
)


@dataclass(frozen=True)
class Promise:
    """What lines of one config and the same terms promise.

    Attributes:
        label: what its lines are called.
        headline: every ε with δ and unit, or that there is none.
        guaranteed: whether there is an ε of what has run.
        facts: a term, its value.
    """

    label: str
    headline: str
    guaranteed: bool
    facts: tuple[tuple[str, str], ...]


def render_grid(result: GridResult) -> str:
    """Return a page that opens offline, as those of `fedsim.report.html`."""
    return render_page(
        "grid.html.jinja",
        result=result,
        promises=promises(result),
        table=grid_table(result),
        terms=terms(result.lines),
        notes=(interval_note(result.lines), UTILITY_NOTE, *stopped_texts(result)),
        groups=[(group, plots(group.panels)) for group in grid_panels(result)],
        uncovered=UNCOVERED,
        tried=trial_rows(result),
        runs=[run for line in result.lines for run in runs(line)],
        failures=[reason for line in result.lines for reason in line.failures],
    )


def promises(result: GridResult) -> list[Promise]:
    """Return what lines of each config promise; those of which no run ended promise nothing."""
    return [_promise(label, lines) for label, lines in alike(result.lines)]


def trial_rows(result: GridResult) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the settings that tuning tried, and for each line the loss that each one gave."""
    if result.tuning is None:
        return [], []
    table = result.tuning.tried
    heads = list(dict.fromkeys(setting for losses in table.values() for setting in losses))
    rows = []
    chosen = {line.name: ", ".join(line.chosen.values()) for line in result.lines}
    for name, losses in table.items():
        row = []
        for setting in heads:
            text = _loss_text(losses[setting]) if setting in losses else NOTHING
            row.append(f"{text} (chosen)" if setting == chosen.get(name) else text)
        rows.append((name, row))
    return heads, rows


def runs(line: CellResult) -> list[tuple[str, str]]:
    """Return every run of a line and its loss, then what failed."""
    ended = [
        (f"{line.name},seed={seed}", "diverged" if not math.isfinite(loss) else f"{loss:.4f}")
        for seed, loss in zip(line.seeds, line.losses, strict=True)
    ]
    return [*ended, *((line.name, f"failed: {reason}") for reason in line.failures)]


def _promise(label: str, lines: list[CellResult]) -> Promise:
    first = lines[0]
    if first.epsilon is None:
        sampler = ("Sampler", first.sampler or NOTHING)
        return Promise(label, NO_GUARANTEE, guaranteed=False, facts=(sampler,))
    # Lines without a guarantee have other terms: all of these have an ε.
    values = sorted({line.epsilon for line in lines if line.epsilon is not None})
    texts = ", ".join(dict.fromkeys(epsilon_text(value) for value in values))
    headline = f"ε = {texts} at δ = {delta_text(first.delta)} for each {first.unit}"
    if first.hypothetical:
        headline = f"hypothetical, no guarantee: {headline}"
    noise = sorted({line.noise_multiplier for line in lines if line.noise_multiplier is not None})
    facts = (
        ("ε", texts),
        ("δ", delta_text(first.delta)),
        ("Unit", first.unit or NOTHING),
        ("Neighbouring relation", first.relation or NOTHING),
        ("Sampler", first.sampler or NOTHING),
        ("Accountant", first.accountant or NOTHING),
        ("Source of noise", NOISE_TEXTS[first.noise or "none"]),
        ("Noise multiplier", ", ".join(f"{value:.4g}" for value in noise) or NOTHING),
    )
    return Promise(label, headline, guaranteed=not first.hypothetical, facts=facts)


def _loss_text(loss: float) -> str:
    return decimal_text(loss, 4) if math.isfinite(loss) else "failed or diverged"

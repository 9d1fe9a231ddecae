"""Tune settings for each line of a grid by trial runs, and count their cost."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from fedsim.config import with_settings
from fedsim.errors import ConfigError
from fedsim.report.grid_result import Tuning
from fedsim.report.schema import RunReport, load_report
from fedsim.sweep.cells import Cell, Variation, labels_of, run_name, unread_keys
from fedsim.sweep.jobs import Job, Outcome, Runner, carry_out

log = logging.getLogger("fedsim")

FOLDER = "tuning"
# Far from the seeds of results, so that tuning has another split, other coins and other noise.
SEED_OFFSET = 1_000
_NOT_TUNED = ("privacy", "data", "seed")


@dataclass(frozen=True)
class Chosen:
    """The result of tuning a cell.

    Attributes:
        cell: cell with the best settings; unchanged if no trial worked.
        settings: the best settings, label to value.
        failure: reason why no trial worked; else empty.
    """

    cell: Cell
    settings: dict[str, str]
    failure: str = ""


def trials(cell: Cell, keys: Sequence[Variation], out: Path) -> dict[tuple[str, ...], Job]:
    """Return one job per combination of values, with the tuning seed.

    Keys that the cell's strategy does not read are left out.

    Raises:
        ConfigError: the config does not take a setting.
    """
    if not (keys := _read_keys(cell, keys)):
        return {}
    labels = labels_of(keys)
    jobs = {}
    for values in product(*(key.values for key in keys)):
        labelled = list(zip(labels, values, strict=True))
        name = f"{FOLDER}/{run_name(Path(cell.name + '.toml'), labelled)}"
        config = with_settings(
            cell.config,
            [f"seed={cell.config.seed + SEED_OFFSET}", *_overrides(keys, values)],
        )
        jobs[values] = Job(name, config, (out / name).resolve())
    return jobs


def tune(
    cells: Sequence[Cell], keys: Sequence[Variation], out: Path, runner: Runner
) -> tuple[list[Chosen], Tuning]:
    """Try all combinations on each cell and keep the one with the lowest held-out loss.

    Trials have a different seed, so other noise and, if the split is random, another split. Their
    losses are not reported as results. No ε covers the choice, which depends on private text; the
    statement says so.
    """
    jobs = {cell.name: trials(cell, keys, out) for cell in cells}
    all_jobs = [job for each in jobs.values() for job in each.values()]
    outcomes = carry_out(all_jobs, out, runner)
    reports = {job.name: load_report(job.out) for job in all_jobs if outcomes[job.name].has_report}
    labels = labels_of(keys)
    chosen, tried = [], {}
    for cell in cells:
        if not jobs[cell.name]:
            chosen.append(Chosen(cell, {}))
            continue
        losses = {
            values: _loss(reports.get(job.name), outcomes[job.name])
            for values, job in jobs[cell.name].items()
        }
        tried[cell.name] = {", ".join(values): loss for values, loss in losses.items()}
        finite = {values: loss for values, loss in losses.items() if math.isfinite(loss)}
        if finite:
            best = min(finite, key=lambda values: losses[values])
            read = _read_keys(cell, keys)
            tuned = replace(cell, config=with_settings(cell.config, _overrides(read, best)))
            chosen.append(Chosen(tuned, dict(zip(labels_of(read), best, strict=True))))
        else:
            ends = {outcomes[job.name].reason or "diverged" for job in jobs[cell.name].values()}
            failure = f"no trial gave a finite loss: {'; '.join(sorted(ends))}"
            chosen.append(Chosen(cell, {}, failure))
        log.info("%s: tuning chose %s", cell.name, chosen[-1].settings)
    return chosen, Tuning(
        keys=tuple(labels),
        runs=len(outcomes),
        failures=len(outcomes) - len(reports),
        gradients=sum(report.cost.gradients for report in reports.values()),
        seconds=math.fsum(report.cost.seconds for report in reports.values()),
        tried=tried,
        statement=f"{', '.join(labels)} chosen for each of {len(cells)} lines by held-out loss, in "
        f"{len(outcomes)} runs with another seed and other noise. Their held-out text overlaps the "
        "held-out text of the results. Unless this text is public, ε does not cover the choice.",
    )


def _read_keys(cell: Cell, keys: Sequence[Variation]) -> list[Variation]:
    unread = unread_keys(cell, [key.key for key in keys])
    return [key for key in keys if key.key not in unread]


def _overrides(keys: Sequence[Variation], values: Sequence[str]) -> list[str]:
    return [f"{key.key}={value}" for key, value in zip(keys, values, strict=True)]


def _loss(report: RunReport | None, outcome: Outcome) -> float:
    """Return the final held-out loss; NaN without a report or if the trial ended early."""
    whole = report is not None and outcome.ending == "finished"
    return report.utility.final.loss if report is not None and whole else math.nan


def refuse_clashes(cells: Sequence[Cell], keys: Sequence[Variation]) -> None:
    """Raise `ConfigError` for a key that the grid sets, or that losses cannot choose."""
    taken = {key for cell in cells for key in cell.keys}
    for key in (variation.key for variation in keys):
        if key.partition(".")[0] in _NOT_TUNED:
            raise ConfigError(
                f"--tune {key}: a lower loss is no reason to choose it; --vary compares guarantees "
                "and data, and --seeds N repeats each run"
            )
        # Two keys clash if they are equal, or one is a table that holds the other.
        if any(f"{key}.".startswith(f"{one}.") or one.startswith(f"{key}.") for one in taken):
            raise ConfigError(
                f"--tune {key}: --vary or --budget already sets it, or --budget computed sizes "
                "from it; use only one of the options for a key"
            )

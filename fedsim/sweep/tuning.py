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
# Far from the seeds that are reported: another split, other coins, other noise.
SEED_OFFSET = 1_000
_NOT_TUNED = ("privacy", "data", "seed")


@dataclass(frozen=True)
class Chosen:
    """The result of tuning: a cell with its best settings, or why there is none.

    Attributes:
        cell: with the settings laid over; as it was where nothing worked.
        settings: label to value.
        failure: a sentence where every trial failed or diverged.
    """

    cell: Cell
    settings: dict[str, str]
    failure: str = ""


def trials(cell: Cell, keys: Sequence[Variation], out: Path) -> dict[tuple[str, ...], Job]:
    """Return a job for each combination of values, at the tuning seed.

    Keys that the cell's strategy does not read are left out.

    Raises:
        ConfigError: a setting that the config does not take.
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
    """Try every combination on every cell and keep the one with the least held-out loss.

    The runs that try have a seed and noise of their own, and a split where that is drawn; their
    losses are never reported as results. They are read from private text: that choice is a query
    which no ε accounts for, and the statement says so.
    """
    jobs = {cell.name: trials(cell, keys, out) for cell in cells}
    outcomes = carry_out([job for of in jobs.values() for job in of.values()], out, runner)
    reports = {
        job.name: load_report(job.out)
        for of in jobs.values()
        for job in of.values()
        if outcomes[job.name].has_report
    }
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
        statement=f"{', '.join(labels)} chosen for each of {len(cells)} lines by held-out loss, "
        f"{len(outcomes)} runs with a seed and noise of their own. The text that chose is, in part "
        "or whole, the text whose losses are reported. It is private: the choice is a query that "
        "no ε here accounts for, unless that text is public.",
    )


def _read_keys(cell: Cell, keys: Sequence[Variation]) -> list[Variation]:
    unread = unread_keys(cell, [key.key for key in keys])
    return [key for key in keys if key.key not in unread]


def _overrides(keys: Sequence[Variation], values: Sequence[str]) -> list[str]:
    return [f"{key.key}={value}" for key, value in zip(keys, values, strict=True)]


def _loss(report: RunReport | None, outcome: Outcome) -> float:
    """NaN also for a trial that was stopped before its last round: not what was asked for."""
    whole = report is not None and outcome.ending == "finished"
    return report.utility.final.loss if report is not None and whole else math.nan


def refuse_clashes(cells: Sequence[Cell], keys: Sequence[Variation]) -> None:
    """Raise `ConfigError` for a key that has its value already, or that losses cannot choose."""
    taken = {key for cell in cells for key in cell.keys}
    for key in (variation.key for variation in keys):
        if key.partition(".")[0] in _NOT_TUNED:
            raise ConfigError(
                f"--tune {key}: a smaller loss there says nothing; --vary compares promises and "
                "data, and --seeds N repeats every run"
            )
        # Setting one key would undo the other: they are equal, or a table and its part.
        if any(f"{key}.".startswith(f"{one}.") or one.startswith(f"{key}.") for one in taken):
            raise ConfigError(
                f"--tune {key}: has its value from --vary or --budget, or sizes for --budget "
                "were computed with it; a key has its values from one of them"
            )

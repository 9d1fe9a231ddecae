"""Run a grid of configs over seeds, with tuned settings for each line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedsim.config import with_settings
from fedsim.errors import ConfigError, about
from fedsim.materials import materials_of
from fedsim.planner.budget import at_budget
from fedsim.report.comparison import DIFFERENT_BUDGETS, comparison_notes
from fedsim.report.differences import differences
from fedsim.report.grid_result import CellResult, GridResult, with_reports
from fedsim.report.schema import RunReport, load_report
from fedsim.report.wording import TOGETHER
from fedsim.sweep.cells import Cell, Variation
from fedsim.sweep.jobs import (
    Job,
    Outcome,
    Runner,
    carry_out,
    check_folders,
    one_after_another,
)
from fedsim.sweep.tuning import SEED_OFFSET, Chosen, refuse_clashes, trials, tune

# Keys that a budget sets, and keys from which it computes them.
_SET_BY_BUDGET = (
    "strategy.cohort_size",
    "strategy.batch_size",
    "strategy.group_size",
    "strategy.local",
    "strategy.name",
    "strategy.rounds",
    "strategy.sampling",
    "strategy.selection",
)
SIZES = (
    "Cohort and batch sizes for a budget follow from the numbers of users and of their examples. "
    "These count as public here, even if other numbers were declared."
)


def with_budgets(cells: Sequence[Cell], budgets: Sequence[str]) -> list[Cell]:
    """Return each cell at each budget of expected gradients per round; budgets vary fastest.

    Raises:
        ConfigError: a budget is not a positive number, or the data cannot meet it.
    """
    budgeted = []
    for cell in cells:
        materials = materials_of(cell.config, device="cpu")
        for text in budgets:
            name = f"{cell.name},budget={text}"
            with about(f"{name}: ", (ConfigError,)):
                config = at_budget(cell.config, materials, _number(text))
            settings, keys = (*cell.settings, ("budget", text)), (*cell.keys, *_SET_BY_BUDGET)
            budgeted.append(Cell(name, config, cell.source, settings, keys))
    return budgeted


def measure(
    cells: Sequence[Cell],
    out: Path,
    *,
    keys: Sequence[Variation] = (),
    seeds: int = 1,
    runner: Runner = one_after_another,
) -> GridResult:
    """Tune and repeat each cell, and return the results.

    Finished runs are not repeated, and interrupted runs are resumed. A run that fails or diverges
    appears in the result instead of raising.

    Args:
        cells: cells of one or several grids, with unique names.
        out: folder of all runs, `<cell>,seed=<s>`; tuning runs are in `tuning/`.
        keys: keys to tune for each cell, with their values.
        seeds: number of seeds, counted up from the config's seed.
        runner: function that does the runs.

    Raises:
        ConfigError: names or folders clash, or a config does not take a key; nothing has run then.
            Or a folder has a run with other tuned settings, because a trial that failed before now
            has another outcome.
    """
    _check(cells, keys, seeds)
    if keys:
        trial_jobs = [job for cell in cells for job in trials(cell, keys, out).values()]
        check_folders(trial_jobs, out)
        chosen, tuning = tune(cells, keys, out, runner)
    else:
        chosen, tuning = [Chosen(cell, {}) for cell in cells], None
    repeats = [[] if choice.failure else _repeats(choice.cell, seeds, out) for choice in chosen]
    # Sort by seed, because runs of one seed share texts and model in memory.
    jobs = sorted((job for each in repeats for job in each), key=lambda job: job.config.seed)
    check_folders(jobs, out)
    outcomes = carry_out(jobs, out, runner)
    ended = [outcome for outcome in outcomes.values() if outcome.ending != "wrong input"]
    if jobs and not ended:
        job = jobs[0].name
        raise ConfigError(f"{job}: {outcomes[job].reason} (no run could begin)")
    lines = [_line(choice, each, outcomes) for choice, each in zip(chosen, repeats, strict=True)]
    return GridResult(
        lines=tuple(lines),
        differences=differences(lines),
        seeds=tuple(sorted({job.config.seed for job in jobs})),
        tuning=tuning,
        notes=tuple(_notes(cells, jobs, outcomes, tuned=tuning is not None)),
    )


def _notes(
    cells: Sequence[Cell], jobs: Sequence[Job], outcomes: Mapping[str, Outcome], *, tuned: bool
) -> list[str]:
    """Return sentences to read with the lines, such as on differences between runs of a seed."""
    by_seed: dict[int, list[RunReport]] = {}
    for job in jobs:
        if outcomes[job.name].has_report:
            by_seed.setdefault(job.config.seed, []).append(load_report(job.out))
    notes = [SIZES] if (budgeted := any("budget" in dict(cell.settings) for cell in cells)) else []
    if len(jobs) > 1 or tuned:
        notes.append(TOGETHER)
    all_notes = comparison_notes(max(by_seed.values(), key=len, default=[]))
    return [*notes, *(note for note in all_notes if not (budgeted and DIFFERENT_BUDGETS in note))]


def _check(cells: Sequence[Cell], keys: Sequence[Variation], seeds: int) -> None:
    if not 1 <= seeds <= SEED_OFFSET:
        raise ConfigError(f"--seeds {seeds}: must be between 1 and {SEED_OFFSET}")
    names = [cell.name for cell in cells]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"compare: two lines would be called {twice[0]!r}; rename a config")
    if any("seed" in dict(cell.settings) for cell in cells):
        raise ConfigError("--vary seed: give --seeds N, which repeats each line with N seeds")
    for cell in cells if keys else ():
        if not (cell.config.data.held_out_users or cell.config.data.held_out_examples):
            raise ConfigError(
                f"--tune: {cell.name}: data.held_out_users = 0, data.held_out_examples = 0: there "
                "is no text to compare the values on; give one a fraction above 0"
            )
    refuse_clashes(cells, keys)


def _repeats(cell: Cell, seeds: int, out: Path) -> list[Job]:
    jobs = []
    for seed in range(cell.config.seed, cell.config.seed + seeds):
        name = f"{cell.name},seed={seed}"
        jobs.append(Job(name, with_settings(cell.config, [f"seed={seed}"]), (out / name).resolve()))
    return jobs


def _line(choice: Chosen, jobs: Sequence[Job], outcomes: Mapping[str, Outcome]) -> CellResult:
    cell = choice.cell
    ended = [(job, outcomes[job.name]) for job in jobs]
    failures = [f"{job.name}: {end.reason}" for job, end in ended if not end.has_report]
    early = ("budget spent", "halted")
    stopped = [f"{job.name}: {end.reason}" for job, end in ended if end.ending in early]
    bare = CellResult(
        name=cell.name,
        source=cell.source,
        strategy=cell.config.strategy.name,
        settings=dict(cell.settings),
        chosen=choice.settings,
        seeds=tuple(job.config.seed for job, end in ended if end.has_report),
        stopped=tuple(stopped),
        num_halted=sum(end.ending == "halted" for _, end in ended),
        failures=tuple([f"{cell.name}: {choice.failure}"] if choice.failure else failures),
    )
    return with_reports(bare, [load_report(job.out) for job, end in ended if end.has_report])


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--budget {text}: must be a number of gradients per round") from None

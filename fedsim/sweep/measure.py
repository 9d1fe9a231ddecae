"""Run a grid of configs, over seeds and with tuned settings for each line if asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedsim.config import with_settings
from fedsim.errors import ConfigError, about
from fedsim.materials import materials_of
from fedsim.planner.budget import at_budget
from fedsim.report.attack_report import load_attack
from fedsim.report.differences import differences
from fedsim.report.grid_result import (
    CellResult,
    ComparedRun,
    GridResult,
    comparison_notes,
    with_reports,
)
from fedsim.report.schema import RunReport, load_metrics, load_report
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


def with_budgets(cells: Sequence[Cell], budgets: Sequence[float]) -> list[Cell]:
    """Return each cell at each budget of expected gradients per round; budgets vary fastest.

    Raises:
        ConfigError: a budget is not positive and finite, or the data cannot meet it.
    """
    budgeted = []
    for cell in cells:
        materials = materials_of(cell.config, device="cpu")
        for budget in budgets:
            name = f"{cell.name},budget={budget:.15g}"
            with about(f"{name}: ", (ConfigError,)):
                config = at_budget(cell.config, materials, budget)
            settings = (*cell.settings, ("budget", f"{budget:.15g}"))
            keys = (*cell.keys, *_SET_BY_BUDGET)
            budgeted.append(Cell(name, config, cell.source, settings, keys))
    return budgeted


def measure(
    arms: Sequence[Cell | Path],
    out: Path,
    *,
    keys: Sequence[Variation] = (),
    seeds: int | None = 1,
    runner: Runner = one_after_another,
) -> GridResult:
    """Tune and repeat each cell, read each finished run, and return the results.

    Finished runs are not repeated, and interrupted runs are resumed. A run that fails or diverges
    appears in the result instead of raising.

    Args:
        arms: cells of one or several grids, and folders of finished runs.
        out: folder of all runs, `<cell>,seed=<s>`; tuning runs are in `tuning/`.
        keys: keys to tune for each cell, with their values.
        seeds: number of seeds, counted up from the config's seed. None for one run per cell, called
            `<cell>`, which the result then holds whole.
        runner: function that does the runs.

    Raises:
        ConfigError: names or folders clash, or a config does not take a key; nothing has run then.
            Or a folder has a run with other tuned settings, because a trial that failed before now
            has another outcome.
    """
    cells = [arm for arm in arms if isinstance(arm, Cell)]
    folders = [arm for arm in arms if isinstance(arm, Path)]
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
    check_folders([*folders, *jobs], out)
    finished = [load_report(folder) for folder in folders]
    outcomes = carry_out(jobs, out, runner)
    ended = [outcome for outcome in outcomes.values() if outcome.ending != "wrong input"]
    if jobs and not ended and not folders:
        first = jobs[0].name
        raise ConfigError(f"{first}: {outcomes[first].reason} (no run could begin)")
    of_cells = iter(
        _line(choice, each, outcomes, whole=seeds is None)
        for choice, each in zip(chosen, repeats, strict=True)
    )
    names = [*(cell.name for cell in cells), *(report.title for report in finished)]
    titled = len(set(names)) == len(names)
    of_folders = iter(
        _finished(report.title if titled else str(folder), folder, report)
        for folder, report in zip(folders, finished, strict=True)
    )
    lines = [next(of_cells if isinstance(arm, Cell) else of_folders) for arm in arms]
    by_seed: dict[int, list[RunReport]] = {}  # of runs without a seed of their own, all together
    for job in jobs:
        if outcomes[job.name].has_report:
            by_seed.setdefault(job.config.seed if seeds else 0, []).append(load_report(job.out))
    reports = [*finished, *max(by_seed.values(), key=len, default=[])]
    return GridResult(
        lines=tuple(lines),
        differences=differences(lines) if seeds else (),
        seeds=tuple(sorted({job.config.seed for job in jobs})) if seeds else (),
        tuning=tuning,
        notes=tuple(_notes(cells, lines, reports, tuned=tuning is not None)),
    )


def _notes(
    cells: Sequence[Cell], lines: Sequence[CellResult], reports: Sequence[RunReport], *, tuned: bool
) -> list[str]:
    """Return sentences to read with the lines, such as on differences between `reports`."""
    budgeted = any("budget" in dict(cell.settings) for cell in cells)
    notes = [SIZES] if budgeted else []
    if sum(len(line.seeds) for line in lines) > 1 or tuned:
        notes.append(TOGETHER)
    early = [
        f"Stopped early: {line.name} after {run.cost.rounds} of {run.cost.planned_rounds} rounds."
        for line in lines
        if line.run and (run := line.run.report).ended_early and not line.stopped
    ]
    return [*notes, *comparison_notes(reports, of_budgets=not budgeted), *early]


def _check(cells: Sequence[Cell], keys: Sequence[Variation], seeds: int | None) -> None:
    if seeds is not None and not 1 <= seeds <= SEED_OFFSET:
        raise ConfigError(f"--seeds {seeds}: must be between 1 and {SEED_OFFSET}")
    if seeds is not None and any("seed" in dict(cell.settings) for cell in cells):
        raise ConfigError("--vary seed: give --seeds N, which repeats each line with N seeds")
    for cell in cells if keys else ():
        if not (cell.config.data.held_out_users or cell.config.data.held_out_examples):
            raise ConfigError(
                f"--tune: {cell.name}: data.held_out_users = 0, data.held_out_examples = 0: there "
                "is no text to compare the values on; give one a fraction above 0"
            )
    refuse_clashes(cells, keys)


def _repeats(cell: Cell, seeds: int | None, out: Path) -> list[Job]:
    if seeds is None:
        return [Job(cell.name, cell.config, (out / cell.name).resolve())]
    jobs = []
    for seed in range(cell.config.seed, cell.config.seed + seeds):
        name = f"{cell.name},seed={seed}"
        jobs.append(Job(name, with_settings(cell.config, [f"seed={seed}"]), (out / name).resolve()))
    return jobs


def _line(
    choice: Chosen, jobs: Sequence[Job], outcomes: Mapping[str, Outcome], *, whole: bool
) -> CellResult:
    cell = choice.cell
    ended = [(job, outcomes[job.name]) for job in jobs]
    failures = [f"{job.name}: {end.reason}" for job, end in ended if not end.has_report]
    early = ("budget spent", "halted")
    stopped = [f"{job.name}: {end.reason}" for job, end in ended if end.ending in early]
    reports = [load_report(job.out) for job, end in ended if end.has_report]
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
        run=_run(jobs[0].out, reports[0]) if whole and reports else None,
    )
    return with_reports(bare, reports)


def _finished(name: str, folder: Path, report: RunReport) -> CellResult:
    """Return the line of a finished run; an early end is in its report, and no failure."""
    bare = CellResult(
        name=name,
        source=name,
        strategy=report.name,
        settings={},
        chosen={},
        seeds=(0,),
        run=_run(folder, report),
    )
    return with_reports(bare, [report])


def _run(folder: Path, report: RunReport) -> ComparedRun:
    evaluated = tuple(line for line in load_metrics(folder) if line.held_out is not None)
    return ComparedRun(report=report, evaluated=evaluated, attack=load_attack(folder))

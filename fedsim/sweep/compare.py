"""Compare several runs: run each config, and read each run folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsim.errors import ConfigError, RunsFailedError
from fedsim.report.comparison import Comparison
from fedsim.report.comparison_folder import write_comparison
from fedsim.report.labels import Arm
from fedsim.sweep.cells import expand, parse_variation
from fedsim.sweep.jobs import (
    Job,
    Outcome,
    Runner,
    carry_out,
    check_folders,
    one_after_another,
)
from fedsim.utils.locks import sole_writer


@dataclass(frozen=True)
class Sweep:
    """The comparison of all runs with a report, and the outcome of each config's run."""

    comparison: Comparison
    outcomes: tuple[Outcome, ...]


def compare(
    sources: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    vary: Sequence[str] = (),
    overrides: Sequence[str] = (),
    runner: Runner = one_after_another,
) -> Comparison:
    """Finish the runs of all sources; write table, picture and page to `out`.

    Arguments and files are those of `sweep`. Runs that their budget ended early count as finished.

    Raises:
        ConfigError: see `sweep`.
        RunsFailedError: a run failed; the comparison of the other runs is written.
    """
    if isinstance(sources, str | os.PathLike):
        raise ConfigError(f"compare: sources = {str(sources)!r}: give a list")
    paths = [Path(source) for source in sources]
    result = sweep(paths, Path(out), vary=vary, overrides=overrides, runner=runner)
    if failures := [outcome for outcome in result.outcomes if not outcome.has_report]:
        raise RunsFailedError(_reasons(failures))
    return result.comparison


def sweep(
    sources: Sequence[Path],
    out: Path,
    *,
    vary: Sequence[str] = (),
    overrides: Sequence[str] = (),
    runner: Runner = one_after_another,
) -> Sweep:
    """Run the grid of configs and compare all finished runs.

    Args:
        sources: folders of finished runs, and configs, whose runs are in `out/<name>`. Finished
            runs are not repeated; interrupted runs are resumed.
        out: folder of the comparison; `<name>.error.txt` in it is the traceback of a failed run.
        vary: `key.path=v1,v2`; the grid is the product of all variations and configs.
        overrides: `key.path=value`, for all configs.
        runner: function that does the runs; by default one after another.

    Raises:
        ConfigError: no source, an invalid source or config, two equal names, a folder of another
            run, or an `out` that another process uses. All configs are read before the first run
            begins. Also raised if no run could begin.
        RunsFailedError: no run has a report.
    """
    jobs, arms = _jobs(sources, out, vary, overrides)
    entries = [job for job in jobs if isinstance(job, Job)]
    with sole_writer(out):
        outcomes = carry_out(entries, out, runner)
        run_dirs = [
            job.out if isinstance(job, Job) else job
            for job in jobs
            if not isinstance(job, Job) or outcomes[job.name].has_report
        ]
        ended = [outcomes[job.name] for job in entries]
        if not run_dirs:
            wrong = all(outcome.ending == "wrong input" for outcome in ended)
            raise (ConfigError if wrong else RunsFailedError)(_reasons(ended))
        return Sweep(write_comparison(run_dirs, out, arms), tuple(ended))


def _reasons(outcomes: Sequence[Outcome]) -> str:
    return "\n".join(f"{outcome.name}: {outcome.reason}" for outcome in outcomes)


def _jobs(
    sources: Sequence[Path], out: Path, vary: Sequence[str], overrides: Sequence[str]
) -> tuple[list[Job | Path], dict[Path, Arm]]:
    """Return the jobs and the folders to read, all checked, and the jobs' arms by folder."""
    if not sources:
        raise ConfigError("compare: name at least one config or run folder")
    variations = [parse_variation(text) for text in vary]
    if (vary or overrides) and all(source.is_dir() for source in sources):
        raise ConfigError("compare: --vary and --set need configs, but all sources are run folders")
    jobs: list[Job | Path] = []
    arms: dict[Path, Arm] = {}
    for source in sources:
        if source.is_dir():
            jobs.append(source)
        else:
            for cell in expand(source, variations, overrides):
                job = Job(cell.name, cell.config, (out / cell.name).resolve())
                arms[job.out] = (cell.source, dict(cell.settings))
                jobs.append(job)
    check_folders(jobs, out)
    return jobs, arms

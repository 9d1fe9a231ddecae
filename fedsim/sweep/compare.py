"""Several runs side by side: run what is a config, read what is a run folder."""

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
    """The comparison of the runs that have a report, and how each config's run ended."""

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
    """Bring every source to a finished run and write table, picture and page into `out`.

    Arguments and files are those of `sweep`. A run that its budget ended early counts as done.

    Raises:
        ConfigError: as `sweep`.
        RunsFailedError: a run failed. What the others gave was written before.
    """
    if isinstance(sources, str | os.PathLike):
        raise ConfigError(f"compare: sources = {str(sources)!r}: give a list of them")
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
    """Run the grid of configs, compare what finished, and tell how each run ended.

    Args:
        sources: run folders, taken as they are, and configs, whose runs are `out/<name>`; one
            that is finished there is not run again, one that was cut off is taken up.
        out: the comparison's folder. `<name>.error.txt` in it is the traceback of a failure.
        vary: `key.path=v1,v2`; the grid is the product of all of them with the configs.
        overrides: `key.path=value`, for all configs.
        runner: carries the runs out; one after another by default.

    Raises:
        ConfigError: no source, two of the same name, a source that is neither, a wrong config, a
            folder of another run, an `out` that another process is writing into. All configs are
            read before the first is run. Or no run could begin.
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
    """Return the runs to be done and the folders to be read, all checked, and the runs' arms."""
    if not sources:
        raise ConfigError("compare: name at least one config or run folder")
    variations = [parse_variation(text) for text in vary]
    if (vary or overrides) and all(source.is_dir() for source in sources):
        raise ConfigError("compare: --vary and --set are for configs, and all sources are folders")
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

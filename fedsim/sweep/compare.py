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
    """How all runs ended.

    Attributes:
        comparison: of the runs that have a report; None where none has.
        outcomes: of the configs' runs, in the order of the grid.
    """

    comparison: Comparison | None
    outcomes: tuple[Outcome, ...]

    @property
    def failures(self) -> list[Outcome]:
        """Those without a report."""
        return [outcome for outcome in self.outcomes if not outcome.has_report]


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
        ConfigError: as `sweep`; also when nothing could be run and all of it was wrong input.
        RunsFailedError: a run failed. What the others gave was written before.
    """
    if isinstance(sources, str | os.PathLike):
        raise ConfigError(f"compare: sources = {str(sources)!r}: give a list of them")
    paths = [Path(source) for source in sources]
    result = sweep(paths, Path(out), vary=vary, overrides=overrides, runner=runner)
    if result.failures or result.comparison is None:
        reasons = "\n".join(f"{failure.name}: {failure.reason}" for failure in result.failures)
        wrong = all(failure.ending == "wrong input" for failure in result.failures)
        raise (ConfigError if wrong and result.comparison is None else RunsFailedError)(reasons)
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
            read before the first is run.
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
        comparison = write_comparison(run_dirs, out, arms) if run_dirs else None
    return Sweep(comparison, tuple(outcomes[job.name] for job in entries))


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

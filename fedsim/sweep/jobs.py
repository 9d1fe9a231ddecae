"""Run a list of jobs: skip finished runs, resume interrupted runs."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedsim.config import Config
from fedsim.errors import BudgetSpentError, ConfigError, DivergedError, HaltedError
from fedsim.report.schema import load_report
from fedsim.runner.folder import RunFolder
from fedsim.runner.launch import run
from fedsim.utils.files import write_atomically

Ending = Literal["finished", "budget spent", "halted", "diverged", "wrong input", "failed"]


_ENDINGS: dict[type[Exception], Ending] = {
    BudgetSpentError: "budget spent",
    HaltedError: "halted",
    DivergedError: "diverged",
    ConfigError: "wrong input",
}


@dataclass(frozen=True)
class Job:
    """A run to do: its name, its config and its folder (an absolute path)."""

    name: str
    config: Config
    out: Path


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job.

    Attributes:
        name: name of the job.
        ending: "finished", "budget spent", "halted" and "diverged" left a report; the others left
            none.
        seconds: time of this attempt.
        reason: reason in one line; empty if the run finished.
        traceback: traceback of an error; else empty.
    """

    name: str
    ending: Ending
    seconds: float = 0.0
    reason: str = ""
    traceback: str = ""

    @property
    def has_report(self) -> bool:
        """Whether the run can be compared with others."""
        return self.ending in ("finished", "budget spent", "halted", "diverged")


Outcomes = Generator[Outcome, None, None]
Runner = Callable[[Sequence[Job]], Outcomes]
"""Does jobs in any order and yields the outcome of each job when it ends."""


def attempt(job: Job) -> Outcome:
    """Begin or resume a run; turn every `Exception` into its outcome."""
    started = time.monotonic()
    ending: Ending = "finished"
    reason = trace = ""
    try:
        run(job.config, job.out, resume=True)
    except Exception as error:  # the other runs must go on
        ending = next((end for kind, end in _ENDINGS.items() if isinstance(error, kind)), "failed")
        text = str(error) if ending != "failed" else f"{type(error).__name__}: {error}"
        reason = "; ".join(line.strip() for line in text.splitlines() if line.strip())
        trace = traceback.format_exc()
    return Outcome(job.name, ending, time.monotonic() - started, reason, trace)


def one_after_another(jobs: Sequence[Job]) -> Outcomes:
    """Do the jobs in this process, in the given order."""
    for number, job in enumerate(jobs, start=1):
        log.info("%s: begins (%d of %d)", job.name, number, len(jobs))
        yield attempt(job)


log = logging.getLogger("fedsim")


def carry_out(
    jobs: Sequence[Job], out: Path, runner: Runner = one_after_another
) -> dict[str, Outcome]:
    """Do all jobs and return their outcomes, by name.

    Args:
        jobs: jobs that passed `check_folders`.
        out: folder for `<name>.error.txt`, the traceback of a failed run.
        runner: function that does the unfinished jobs.
    """
    outcomes = {
        job.name: _outcome_before(job) for job in jobs if RunFolder(job.out).report.exists()
    }
    unfinished = [job for job in jobs if job.name not in outcomes]
    if unfinished:
        with closing(runner(unfinished)) as new_outcomes:
            for number, outcome in enumerate(new_outcomes, start=1):
                outcomes[outcome.name] = outcome
                _record(outcome, out, f"{number} of {len(unfinished)}")
    return outcomes


def check_folders(jobs: Sequence[Job | Path], out: Path) -> None:
    """Check all folders before the first run begins.

    Args:
        jobs: runs to do, and folders of finished runs.
        out: folder of the comparison.

    Raises:
        ConfigError: two jobs share a folder; a folder has no finished run, another run or other
            files; or `out` is a run folder.
    """
    if RunFolder(out).identity.exists():
        raise ConfigError(f"--out {out}: is a run folder; give the comparison another folder")
    seen: set[Path] = set()
    for job in jobs:
        folder = job.out if isinstance(job, Job) else job.resolve()
        if folder in seen:
            raise ConfigError(
                f"compare: two runs would share the folder {folder}; give them different names"
            )
        seen.add(folder)
    for job in jobs:
        if not isinstance(job, Job):
            if not RunFolder(job).report.exists():
                raise ConfigError(f"compare: {job} is no finished run (no report.json)")
        else:
            RunFolder(job.out).check(job.config, resume=True, exactly=True)


def _outcome_before(job: Job) -> Outcome:
    report = load_report(job.out)
    done, planned = report.cost.rounds, job.config.strategy.rounds
    log.info("%s: finished before, not run again", job.name)
    if report.diverged:
        return Outcome(job.name, "diverged", reason=report.diverged)
    if report.halted:
        return Outcome(job.name, "halted", reason=report.halted)
    if done == planned:
        return Outcome(job.name, "finished")
    return Outcome(job.name, "budget spent", reason=f"ended after {done} of {planned} rounds")


def _record(outcome: Outcome, out: Path, place: str) -> None:
    """Log how a run ended; write the traceback of a failure, or delete an earlier traceback."""
    log.info("%s: %s after %.1f s (%s)", outcome.name, outcome.ending, outcome.seconds, place)
    path = out / f"{outcome.name}.error.txt"
    if outcome.has_report:
        path.unlink(missing_ok=True)
    else:
        write_atomically(path, outcome.traceback)

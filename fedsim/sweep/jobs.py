"""Run a list of jobs: skip what is finished, resume what was interrupted."""

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
    """A run to be done: what it is called, its config and its folder, absolute."""

    name: str
    config: Config
    out: Path


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        name: the job's.
        ending: "budget spent", "halted" and "diverged" left a report, as "finished" did; the
            others left none.
        seconds: this attempt took.
        reason: a line; empty where all went well.
        traceback: the whole story of a failure.
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
"""Carries out jobs in any order and yields each one's outcome as it ends."""


def attempt(job: Job) -> Outcome:
    """Begin or take up a run; every exception but the end of the process becomes its outcome."""
    started = time.monotonic()
    ending: Ending = "finished"
    reason = story = ""
    try:
        run(job.config, job.out, resume=True)
    except Exception as error:  # the other runs go on, whatever it is
        ending = next((end for kind, end in _ENDINGS.items() if isinstance(error, kind)), "failed")
        text = str(error) if ending != "failed" else f"{type(error).__name__}: {error}"
        reason = "; ".join(line.strip() for line in text.splitlines() if line.strip())
        story = traceback.format_exc()
    return Outcome(job.name, ending, time.monotonic() - started, reason, story)


def one_after_another(jobs: Sequence[Job]) -> Outcomes:
    """Carry out the jobs in this process, in their order."""
    for number, job in enumerate(jobs, start=1):
        log.info("%s: begins (%d of %d)", job.name, number, len(jobs))
        yield attempt(job)


log = logging.getLogger("fedsim")


def carry_out(
    jobs: Sequence[Job], out: Path, runner: Runner = one_after_another
) -> dict[str, Outcome]:
    """Bring every job to an end and return how each ended, by name.

    Args:
        jobs: with folders of their own; `check_folders` refuses others.
        out: `<name>.error.txt` in it is the traceback of a failure.
        runner: carries out those that are not finished.
    """
    outcomes = {
        job.name: _outcome_before(job) for job in jobs if RunFolder(job.out).report.exists()
    }
    left = [job for job in jobs if job.name not in outcomes]
    if left:
        with closing(runner(left)) as ending:
            for number, outcome in enumerate(ending, start=1):
                outcomes[outcome.name] = outcome
                _take_down(outcome, out, f"{number} of {len(left)}")
    return outcomes


def check_folders(jobs: Sequence[Job | Path], out: Path) -> None:
    """Look at every folder before the first run begins.

    Args:
        jobs: runs to be done, and folders of finished ones.
        out: the folder of the comparison.

    Raises:
        ConfigError: two of the same folder, a folder that is no finished run, that holds another
            run or something else, or an `out` that is a run's folder.
    """
    if RunFolder(out).identity.exists():
        raise ConfigError(f"--out {out}: is a run's folder; give the comparison another")
    seen: set[Path] = set()
    for job in jobs:
        folder = job.out if isinstance(job, Job) else job.resolve()
        if folder in seen:
            raise ConfigError(f"compare: two runs would share the folder {folder}; call them apart")
        seen.add(folder)
    for job in jobs:
        if not isinstance(job, Job):
            if not RunFolder(job).report.exists():
                raise ConfigError(f"compare: {job} is no finished run (no report.json)")
        else:
            RunFolder(job.out).check(job.config, resume=True, exactly=True)


def _outcome_before(job: Job) -> Outcome:
    report = load_report(job.out)
    done, asked = report.cost.rounds, job.config.strategy.rounds
    log.info("%s: finished before, not run again", job.name)
    if report.diverged:
        return Outcome(job.name, "diverged", reason=report.diverged)
    if report.halted:
        return Outcome(job.name, "halted", reason=report.halted)
    if done == asked:
        return Outcome(job.name, "finished")
    return Outcome(job.name, "budget spent", reason=f"ended after {done} of {asked} rounds")


def _take_down(outcome: Outcome, out: Path, place: str) -> None:
    """Say how a run ended, and keep the traceback of a failure or drop an earlier one."""
    log.info("%s: %s after %.1f s (%s)", outcome.name, outcome.ending, outcome.seconds, place)
    path = out / f"{outcome.name}.error.txt"
    if outcome.has_report:
        path.unlink(missing_ok=True)
    else:
        write_atomically(path, outcome.traceback)

"""One run among several: carried out so that what it raises becomes an outcome, not the end."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedsim.config import Config
from fedsim.errors import BudgetSpentError, ConfigError, DivergedError, HaltedError
from fedsim.launch import run

Ending = Literal["finished", "budget spent", "halted", "diverged", "wrong input", "failed"]


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
    except BudgetSpentError as error:
        ending, reason = "budget spent", str(error)
    except HaltedError as error:
        ending, reason = "halted", str(error)
    except DivergedError as error:
        ending, reason = "diverged", str(error)
    except ConfigError as error:
        ending, reason, story = "wrong input", _one_line(str(error)), traceback.format_exc()
    except Exception as error:  # the other runs go on, whatever it is
        ending, story = "failed", traceback.format_exc()
        reason = _one_line(f"{type(error).__name__}: {error}")
    return Outcome(job.name, ending, time.monotonic() - started, reason, story)


def one_after_another(jobs: Sequence[Job]) -> Outcomes:
    """Carry out the jobs in this process, in their order."""
    for job in jobs:
        yield attempt(job)


def _one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())

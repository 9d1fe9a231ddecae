"""Runs of a sweep as Ray tasks, side by side; a run whose process died is taken up again."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.errors import ConfigError, about
from fedsim.grids.ray_cluster import Share, connect, import_ray, require
from fedsim.sweep.jobs import Job, Outcome, Outcomes, attempt

_RETRIES = 3  # of a run whose process died; it goes on from its last checkpoint
_POLL = 1.0  # seconds after which Ctrl-C is looked for


@dataclass(frozen=True)
class OnRay:
    """A `fedsim.sweep.jobs.Runner`: a task a job, with the share that its config gives one worker.

    Folders are named to the tasks as they are here, so the machines of a cluster need a file
    system in common.

    Attributes:
        address: of an existing cluster; "" starts one here, which ends with the last job.
        workers: the most jobs at once; None for as many as there is room for.
    """

    address: str = ""
    workers: int | None = None

    def __call__(self, jobs: Sequence[Job]) -> Outcomes:
        """Yield outcomes as they come; closing the iterator ends the tasks that still run.

        Raises:
            ConfigError: no Ray, no cluster, a job that wants Ray workers of its own, or more
                asked for than the cluster has. No job was begun then.
        """
        _refuse_nested(jobs)
        ray = import_ray()
        connect(self.address)
        try:
            _check_shares(jobs, self.workers)
            yield from _outcomes(ray, jobs, self.workers or len(jobs))
        finally:
            ray.shutdown()


def _outcomes(ray: Any, jobs: Sequence[Job], at_once: int) -> Outcomes:  # noqa: ANN401
    task = ray.remote(_attempt_in)
    waiting, running = deque(jobs), dict[Any, Job]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.popleft()
                options = task.options(
                    num_cpus=job.config.executor.cpus_per_worker,
                    num_gpus=job.config.executor.gpus_per_worker,
                    max_retries=_RETRIES,
                    name=job.name,
                )
                running[options.remote(job, str(Path.cwd()))] = job
            ready, _ = ray.wait(list(running), num_returns=1, timeout=_POLL)
            for reference in ready:
                yield _outcome(ray, reference, running.pop(reference))
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def _outcome(ray: Any, reference: Any, job: Job) -> Outcome:  # noqa: ANN401
    try:
        outcome: Outcome = ray.get(reference)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error  # of a task, an error on the way to its run
        first = str(cause).strip().partition("\n")[0]
        reason = f"given up after {_RETRIES} new starts: {type(cause).__name__}: {first}"
        return Outcome(job.name, "failed", reason=reason, traceback=str(error))
    return outcome


def _attempt_in(job: Job, folder: str) -> Outcome:
    """Run in a worker process; relative paths of the config mean what they mean at home."""
    os.chdir(folder)
    return attempt(job)


def _refuse_nested(jobs: Sequence[Job]) -> None:
    for job in jobs:
        if job.config.executor.grid != "in-process":
            raise ConfigError(
                f"{job.name}: executor.grid = {job.config.executor.grid!r}: a run of --grid ray "
                "computes in its own process; add --set executor.grid=in-process --set "
                "executor.workers=1, or leave --grid out"
            )


def _check_shares(jobs: Sequence[Job], at_once: int | None) -> None:
    """Raise `ConfigError` unless the cluster has each kind of share as often as asked for."""
    executors = [job.config.executor for job in jobs]
    kinds = Counter((executor.cpus_per_worker, executor.gpus_per_worker) for executor in executors)
    for (cpus, gpus), count in kinds.items():
        with about(f"--grid ray, --workers {at_once or 1}: ", (ConfigError,)):
            require(Share(min(at_once or 1, count), cpus, gpus))

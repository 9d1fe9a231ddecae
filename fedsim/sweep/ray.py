"""Do the runs of a sweep as parallel Ray tasks; resume a run if its process died."""

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

_RETRIES = 3  # retries after a process died; each resumes from the last checkpoint
_POLL = 1.0  # seconds between checks for Ctrl-C


@dataclass(frozen=True)
class OnRay:
    """A `fedsim.sweep.jobs.Runner`: one task per job, with the resources of one worker.

    Tasks use the same paths as this process, so the machines of a cluster need a common file
    system.

    Attributes:
        address: address of a running cluster; "" starts one here and stops it after the last job.
        workers: maximum number of parallel jobs; None: as many as fit.
    """

    address: str = ""
    workers: int | None = None

    def __call__(self, jobs: Sequence[Job]) -> Outcomes:
        """Yield outcomes as jobs end; closing the iterator cancels the running tasks.

        Raises:
            ConfigError: no Ray, no cluster, a job that needs its own Ray workers, or more
                resources requested than the cluster has. No job has begun then.
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
        cause = getattr(error, "cause", None) or error  # a task's own error before its run began
        first = str(cause).strip().partition("\n")[0]
        reason = f"stopped after {_RETRIES} retries: {type(cause).__name__}: {first}"
        return Outcome(job.name, "failed", reason=reason, traceback=str(error))
    return outcome


def _attempt_in(job: Job, folder: str) -> Outcome:
    """Run in a worker process, from `folder`, so that the config's relative paths hold."""
    os.chdir(folder)
    return attempt(job)


def _refuse_nested(jobs: Sequence[Job]) -> None:
    for job in jobs:
        if job.config.executor.grid != "in-process":
            raise ConfigError(
                f"{job.name}: executor.grid = {job.config.executor.grid!r}: with --grid ray each "
                "run computes in one process; add --set executor.grid=in-process --set "
                "executor.workers=1, or leave --grid out"
            )


def _check_shares(jobs: Sequence[Job], at_once: int | None) -> None:
    """Raise `ConfigError` unless the cluster has enough workers of each size."""
    executors = [job.config.executor for job in jobs]
    kinds = Counter((executor.cpus_per_worker, executor.gpus_per_worker) for executor in executors)
    for (cpus, gpus), count in kinds.items():
        with about(f"--grid ray, --workers {at_once or 1}: ", (ConfigError,)):
            require(Share(min(at_once or 1, count), cpus, gpus))

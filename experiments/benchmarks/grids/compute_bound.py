"""Times of rounds with real gradients on one worker and on two."""

from __future__ import annotations

from statistics import median

import numpy as np

from fedsim.clients.tasks.fedsgd import AveragedGradient
from fedsim.clipping import FlatClip
from fedsim.config import ModelConfig
from fedsim.data.config import DataConfig
from fedsim.experiments.benchmarks.timing import Row, repeated, row_of
from fedsim.grids.executor import GridExecutor
from fedsim.grids.ray_cluster import Share
from fedsim.grids.ray_grid import RayGrid
from fedsim.grids.records import ClientSpec
from fedsim.materials import load_materials
from fedsim.plan import TaskSpec

_COHORT, _GROUP_SIZE = 64, 16
_CLIP = FlatClip(l2_clip_norm=1.0)
_SPEC = ClientSpec(
    seed=0,
    data=DataConfig(cutting="join"),
    model=ModelConfig(pretraining_steps=0),
    task=TaskSpec(name="fedsgd", options={"group_size": _GROUP_SIZE}),
    engine="auto",
    device="cpu",
)


def throughput(
    spec: ClientSpec = _SPEC,
    *,
    cohort_size: int = _COHORT,
    gpus: float = 0.0,
    repetitions: int = 5,
) -> list[Row]:
    """Return the seconds of a round on the speakers with the most text, by number of workers.

    Args:
        spec: client specification, with the maximum number of examples per user.
        cohort_size: number of speakers.
        gpus: share of a GPU per worker.
        repetitions: number of timed repetitions.
    """
    materials = load_materials(spec.seed, spec.data, spec.model, "cpu")
    parameters = materials.model.initial_parameters()
    sizes, group_size = materials.split.user_sizes, int(spec.task.options["group_size"])
    cohort = np.sort(np.argsort(sizes)[-cohort_size:]).astype(np.int64)
    work = np.minimum(sizes, group_size)
    units = AveragedGradient(materials, group_size=group_size).units(cohort, 0)
    tokens = sum(int(unit.lengths.sum()) for unit in units)
    with RayGrid("default", Share(2, cpus=1.0, gpus=gpus)) as grid:
        # As one shard the whole cohort goes to one worker, and the other waits.
        executors = {1: GridExecutor(grid, spec, cohort_size), 2: GridExecutor(grid, spec, 0, work)}
        seconds = {
            workers: repeated(
                lambda: executor.clipped_sum(parameters, cohort, _CLIP, 0),  # noqa: B023
                repetitions,
            )
            for workers, executor in executors.items()
        }
    return [
        row_of(
            "grids",
            f"gradients/{cohort_size}x{group_size}",
            f"ray, {workers} worker{'s' * (workers > 1)}",
            taken,
            ratio=median(seconds[1]) / median(taken),
            details={
                "users_per_second": cohort_size / median(taken),
                "tokens_per_second": tokens / median(taken),
            },
        )
        for workers, taken in seconds.items()
    ]

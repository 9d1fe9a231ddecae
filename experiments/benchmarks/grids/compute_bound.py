"""Times of rounds with real gradients on one worker and on two."""

from __future__ import annotations

from statistics import median

import numpy as np

from fedsim.clipping import FlatClip
from fedsim.config import ModelConfig
from fedsim.data.config import DataConfig
from fedsim.experiments.benchmarks.timing import repeated, row_of
from fedsim.grids.executor import GridExecutor
from fedsim.grids.ray_cluster import Share
from fedsim.grids.ray_grid import RayGrid
from fedsim.grids.records import ClientSpec
from fedsim.materials import load_materials
from fedsim.plan import TaskSpec
from fedsim.utils.machine import Row

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


def throughput() -> list[Row]:
    """Return the seconds of a round on the speakers with the most text, by number of workers."""
    materials = load_materials(_SPEC.seed, _SPEC.data, _SPEC.model, _SPEC.device)
    parameters = materials.model.initial_parameters()
    sizes = materials.split.user_sizes
    cohort = np.sort(np.argsort(sizes)[-_COHORT:]).astype(np.int64)
    tokens = np.minimum(sizes, _GROUP_SIZE)
    seconds = {}
    for workers in (1, 2):
        with RayGrid("default", Share(workers, cpus=1.0, gpus=0.0)) as grid:
            executor = GridExecutor(grid, _SPEC, tokens=tokens)
            seconds[workers] = repeated(lambda: executor.clipped_sum(parameters, cohort, _CLIP, 0))  # noqa: B023
    return [
        row_of(
            "grids",
            "gradients/64x16",
            f"ray, {workers} worker{'s' * (workers > 1)}",
            taken,
            ratio=median(seconds[1]) / median(taken),
            details={"users_per_second": _COHORT / median(taken)},
        )
        for workers, taken in seconds.items()
    ]

"""The executor that a config names."""

from __future__ import annotations

from pathlib import Path

from flwr.serverapp import Grid

from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.execution import Executor
from fedsim.grids.collective import CollectiveExecutor
from fedsim.grids.executor import GridExecutor
from fedsim.grids.in_process import InProcessGrid
from fedsim.grids.ray_grid import RayGrid
from fedsim.grids.records import ClientSpec
from fedsim.grids.sharding import unit_tokens
from fedsim.materials import Materials, worker_device
from fedsim.plan import RoundPlan
from fedsim.server_optimizer import AutomaticOptimizer, ServerOptimizer

_WHOLE_MATRICES = ("adafactor", "muon")


def build_executor(
    config: Config, materials: Materials, plan: RoundPlan, grid: Grid, device: str
) -> Executor:
    """Return the executor of a plan's rounds over a grid.

    Args:
        config: the run's config; `[executor]` has shard size, engine and workers.
        materials: the config's materials.
        plan: the plan of the rounds; the executor includes the plan's test of each round.
        grid: any `flwr.serverapp.Grid`.
        device: torch device of the server.

    Raises:
        ConfigError: this plan or this grid does not support `executor.reduce`.
    """
    spec = ClientSpec(
        seed=config.seed,
        data_seed=materials.seed,
        text_digest=materials.text_digest,
        start_digest=materials.start_digest,
        # Server and worker share one network in this process.
        frozen_digest=None if type(grid) is InProcessGrid else materials.frozen_digest,
        data=config.data,
        model=config.model,
        task=plan.task,
        engine=config.executor.engine,
        device=worker_device(config.executor, device),
        precision=config.executor.precision,
        checkpointing=config.executor.checkpointing,
        gpu_share=min(1.0, config.executor.gpus_per_worker or 1.0),
        folder=str(Path.cwd()),
    )
    size, tokens = config.executor.shard_size, unit_tokens(plan, materials)
    check_reduce(config, plan, grid)
    if config.executor.reduce == "collective" and isinstance(grid, RayGrid):
        whole = plan.optimizer.name in _WHOLE_MATRICES
        return CollectiveExecutor(grid, spec, size, tokens, whole=whole)
    return plan.around(GridExecutor(grid, spec, size, tokens))


def check_reduce(config: Config, plan: RoundPlan, grid: Grid) -> None:
    """Raise `ConfigError` if plan or grid do not support `executor.reduce`."""
    if config.executor.reduce == "central":
        return
    gpus = config.executor.gpus_per_worker
    reasons = {
        f"executor.gpus_per_worker = {gpus:g}": "parameters of a worker lie on one GPU"
        if gpus > 1.0
        else None,
        "executor.grid": None if isinstance(grid, RayGrid) else "needs workers of Ray",
        f"strategy.name = {config.strategy.name!r}": plan.wrapper
        and "its test of a round reads the updates in the server",
        f"privacy.mechanism = {plan.matrix.kind!r}": "the noise of earlier rounds is kept in the "
        "server"
        if plan.matrix.feedback
        else None,
        f"server.optimizer = {plan.optimizer.name!r}": None
        if type(plan.optimizer) in (ServerOptimizer, AutomaticOptimizer)
        else "a plug-in steps in the server",
    }
    for field, reason in reasons.items():
        if reason:
            raise ConfigError(
                f'executor.reduce = "collective" with {field}: {reason}; take reduce = "central"'
            )

"""From a config and its materials to the plan of a round, and to who computes the plan's sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flwr.serverapp import Grid

from fedsim.config import Config
from fedsim.execution import Executor
from fedsim.grids.executor import GridExecutor
from fedsim.grids.records import ClientSpec
from fedsim.grids.sharding import unit_tokens
from fedsim.materials import Materials, worker_device
from fedsim.plan import RoundPlan
from fedsim.registry import distribution, resolve
from fedsim.runner.release_seed import release_seed


def build_plan(config: Config, materials: Materials) -> RoundPlan:
    """Let the strategy that the config names build its plan, and say what it draws from."""
    build: Callable[[Config, Materials], RoundPlan] = resolve(
        "strategies", config.strategy.name, "strategy.name"
    )
    plan = build(config, materials)
    made = [
        plan.task.model_dump(mode="json"),
        distribution("tasks", plan.task.name),
        # Calibrated numbers too: the same config with more noise is another release.
        *map(repr, (plan.sampling, plan.clip, plan.clip_policy, plan.estimator, plan.optimizer)),
        *(plan.noise_multiplier, plan.noise_stddev, plan.units_per_user, plan.relation.value),
    ]
    return replace(plan, seed=release_seed(config, materials, made))


def build_executor(
    config: Config, materials: Materials, plan: RoundPlan, grid: Grid, device: str
) -> Executor:
    """Return who computes the plan's sums over a grid, told all that clients must know."""
    executor = GridExecutor(
        grid,
        ClientSpec(
            seed=config.seed,
            data_seed=materials.seed,
            data=config.data,
            model=config.model,
            task=plan.task,
            engine=config.executor.engine,
            device=worker_device(config.executor, device),
            precision=config.executor.precision,
        ),
        config.executor.shard_size,
        unit_tokens(plan, materials),
    )
    return plan.around(executor, plan.seed)

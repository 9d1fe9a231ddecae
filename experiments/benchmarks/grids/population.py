"""Time of a round over a population of real size, without gradients."""

from __future__ import annotations

import numpy as np

from fedsim.clipping import FlatClip
from fedsim.estimators import FixedDenominator
from fedsim.experiments.benchmarks.grids.null_client import NAME, null_spec, parameters_of
from fedsim.experiments.benchmarks.timing import Row, repeated, row_of
from fedsim.grids.executor import GridExecutor
from fedsim.grids.ray_cluster import Share
from fedsim.grids.ray_grid import RayGrid
from fedsim.plan import RoundPlan, TaskSpec
from fedsim.round import run_round
from fedsim.sampling import PoissonSampling
from fedsim.server_optimizer import ServerOptimizer
from fedsim.state import ServerState

_USERS = 342_477  # Stack Overflow's training users, Charles et al. 2024, Table 1
_COHORT = 1_000
_PARAMETERS = 1_000_000


def population_round(share: Share) -> Row:
    """Return the seconds of a whole `run_round`: coins, shards, sum, noise, ledger, Adam's step."""
    plan = plan_of(_USERS, _COHORT)
    state = ServerState(0, parameters_of(_PARAMETERS))
    tokens = np.random.default_rng(0).geometric(1 / 400, size=_USERS)
    drawn = []
    with RayGrid(NAME, share) as grid:
        executor = GridExecutor(grid, null_spec(), tokens=tokens)

        def one_round() -> None:
            nonlocal state
            state, record = run_round(state, plan, executor)
            drawn.append(record.num_units)

        seconds = repeated(one_round)
    details = {"parameters": _PARAMETERS, "workers": share.workers, "users_drawn": drawn[1:]}
    return row_of("grids", f"population/{_USERS}", "ray", seconds, details=details)


def plan_of(num_users: int, cohort_size: int) -> RoundPlan:
    """Return an ordinary private plan over `num_users` users."""
    probability = cohort_size / num_users
    return RoundPlan(
        strategy="uls",
        unit="user",
        pool=np.arange(num_users),
        sampling=PoissonSampling(probability),
        task=TaskSpec(name="fedsgd", options={"group_size": 1}),
        clip=FlatClip(l2_clip_norm=1.0),
        estimator=FixedDenominator(probability, num_users),
        noise_multiplier=1.0,
        units_per_user=1,
        optimizer=ServerOptimizer("adam", 0.01),
        entropy="seeded",
    )

"""What an attacker sees: the release of each round, as the real round makes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fedsim.execution import Executor
from fedsim.plan import RoundPlan
from fedsim.round import run_round
from fedsim.server_optimizer import ServerOptimizer
from fedsim.state import ServerState
from fedsim.tensors import Tensors


def stepping_by_release(plan: RoundPlan) -> RoundPlan:
    """Return the plan with a server that steps by the release itself: SGD at rate 1.

    Any other optimizer is computed from the releases alone, so it shows an attacker no more.
    """
    return replace(plan, optimizer=ServerOptimizer("sgd", 1.0), entropy="seeded")


def releases(
    plan: RoundPlan, executor: Executor, parameters: Tensors, rounds: int
) -> Iterator[Tensors]:
    """Yield the release of each of `rounds` rounds of a plan that is stepping by its release.

    Args:
        plan: from `stepping_by_release`.
        executor: who computes the clipped sum.
        parameters: where to start, float64 so that differences of steps lose nothing.
        rounds: how many.
    """
    state = ServerState(0, parameters)
    for _ in range(rounds):
        before = state.parameters
        state, _ = run_round(state, plan, executor)
        yield {name: before[name] - after for name, after in state.parameters.items()}

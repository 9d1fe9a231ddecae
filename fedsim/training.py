"""Rounds after rounds, within the budget."""

from __future__ import annotations

from collections.abc import Callable

from fedsim.errors import BudgetSpentError
from fedsim.execution import Executor
from fedsim.plan import RoundPlan
from fedsim.round import run_round
from fedsim.state import RoundRecord, ServerState

OnRound = Callable[[ServerState, RoundRecord], None]


def train(
    state: ServerState,
    plan: RoundPlan,
    executor: Executor,
    rounds: int,
    *,
    on_round: OnRound = lambda _state, _record: None,
    max_releases: int | None = None,
) -> ServerState:
    """Run rounds until `rounds` are done and return the last state.

    Args:
        state: where to go on from; at round 0 for a new run.
        plan: what each round does.
        executor: who computes.
        rounds: the total, those already done included.
        on_round: sees every state and its record; what it raises ends the training.
        max_releases: noisy releases that the budget pays for; None for no limit.

    Raises:
        BudgetSpentError: another release would go over `max_releases`. It comes before the round.
    """
    while state.round < rounds:
        if max_releases is not None and state.ledger.num_releases >= max_releases:
            raise BudgetSpentError(
                f"round {state.round}: the budget pays for {max_releases} releases and "
                f"{state.ledger.num_releases} are charged; no further round is run"
            )
        state, record = run_round(state, plan, executor)
        on_round(state, record)
    return state

"""Rounds after rounds, within the budget."""

from __future__ import annotations

from collections.abc import Callable

from fedsim.accounting.budget import Budget
from fedsim.divergence import check_parameters
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
    budget: Budget | None = None,
    before_round: Callable[[ServerState], None] = lambda _state: None,
) -> ServerState:
    """Run rounds until `rounds` are done and return the last state.

    Args:
        state: where to go on from; at round 0 for a new run.
        plan: what each round does.
        executor: who computes.
        rounds: the total, those already done included.
        on_round: sees every state and its record; what it raises ends the training.
        budget: what all releases of the ledger together may cost; None for no limit.
        before_round: sees the state before each round; what it raises ends the training.

    Raises:
        BudgetSpentError: another release would exceed the budget. It comes before the round.
        DivergedError: a parameter is not finite after a round, which `on_round` does not see.
    """
    # Asked once: the rounds to come all cost the same, so they can be counted.
    paid = _releases_paid_for(budget, state, plan, rounds) if budget is not None else None
    while state.round < rounds:
        if paid is not None and state.ledger.num_releases >= paid:
            raise BudgetSpentError(
                f"round {state.round}: the budget pays for {paid} releases like this one and "
                f"{state.ledger.num_releases} are charged; no further round is run"
            )
        before_round(state)
        state, record = run_round(state, plan, executor)
        check_parameters(state)
        on_round(state, record)
    return state


def _releases_paid_for(budget: Budget, state: ServerState, plan: RoundPlan, rounds: int) -> int:
    left = budget.affordable(state.ledger, plan.cost, rounds - state.round)
    return state.ledger.num_releases + left

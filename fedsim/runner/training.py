"""Run rounds within a budget; stop if training diverges."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from fedsim.accounting.budget import Budget
from fedsim.accounting.ledger import Ledger
from fedsim.errors import BudgetSpentError, DivergedError
from fedsim.evaluation.metrics import NO_SCORES
from fedsim.evaluation.scoring import owners
from fedsim.execution import Executor
from fedsim.materials import Materials
from fedsim.plan import RoundPlan
from fedsim.report.schema import RoundMetrics, Scores
from fedsim.round import run_round
from fedsim.server_optimizer import AutomaticOptimizer, ServerOptimizer
from fedsim.state import RoundRecord, ServerState
from fedsim.tensors import all_finite

NOT_PAID_FOR = (
    "The run diverged: its released parameters or its held-out loss are not finite. So private "
    "text decided, without noise, that there is no model, and no ε covers that decision."
)
_CURE = "try a smaller server.learning_rate, or another starting model"

OnRound = Callable[[ServerState, RoundRecord], ServerState | None]


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
        state: state to continue from; at round 0 for a new run.
        plan: plan of each round.
        executor: computes the clipped sums.
        rounds: total number of rounds, with those already done.
        on_round: called with the state and the record after each round. It may return a state with
            further charges to continue with. The next round overwrites the state's
            `optimizer_state`. An exception ends the training.
        budget: bound on the cost of all releases in the ledger; None: no limit.
        before_round: called with the state before each round. An exception ends the training.

    Raises:
        BudgetSpentError: another round would exceed the budget; raised before that round.
        DivergedError: a parameter is not finite after a round; `on_round` is not called for it.
    """
    # Keep the first state, which is the caller's; later ones may be overwritten to save memory. A
    # plug-in's optimizer may raise in the middle of a step, so the state before it must survive.
    is_plugin = type(plan.optimizer) not in (ServerOptimizer, AutomaticOptimizer)
    keep = True
    # Computed once, because all rounds cost the same.
    paid = rounds if budget is None else rounds_paid_for(budget, state, plan, rounds)
    while state.round < rounds:
        if state.round >= paid:
            raise BudgetSpentError(
                f"round {state.round}: {state.ledger.num_releases} releases are charged, and the "
                f"budget does not pay for another round of {rounds}; rounds repeated after a kill "
                "are charged twice (a smaller training.checkpoint_every repeats fewer)"
            )
        before_round(state)
        state, record = run_round(state, plan, executor, keep=keep)
        keep = is_plugin
        check_parameters(state)
        state = on_round(state, record) or state
    return state


def check_parameters(state: ServerState) -> None:
    """Raise `DivergedError` if a parameter is NaN or infinite after a round."""
    if not all_finite(state.parameters):
        broken = [name for name, value in state.parameters.items() if not value.isfinite().all()]
        raise DivergedError(
            f"round {state.round}: {len(broken)} of {len(state.parameters)} parameters are not "
            f"finite, such as {broken[0]}; {_CURE}"
        )


def check_held_out(line: RoundMetrics, materials: Materials) -> None:
    """Raise `DivergedError` if there is held-out text and its loss is NaN or infinite.

    ε does not cover this use of private text, so the report has the sentence `NOT_PAID_FOR`.
    """
    if line.held_out is None or not len(materials.split.held_out_examples):
        return
    if not math.isfinite(line.held_out.loss):
        raise DivergedError(
            f"round {line.round}: the held-out loss is {line.held_out.loss} (computed on private "
            f"text: no ε covers this stop); {_CURE}"
        )


def has_risen(losses: Sequence[float]) -> bool:
    """Return whether the loss ever rose at three evaluations in a row.

    Examples:
        >>> has_risen([5.0, 5.1, 5.2]), has_risen([5.0, 4.9, 5.0, 5.1, 5.2, 4.8])
        (False, True)
    """
    steps = [after > before for before, after in pairwise(losses)]
    return any(map(all, zip(steps, steps[1:], steps[2:], strict=False)))


def without_scores(materials: Materials, *folders: Path) -> Scores:
    """Delete `model/` and `adapter/` of a diverged run; return an evaluation without scores.

    A model from an earlier round could be mistaken for the result. `checkpoints/` has the last
    finite states.
    """
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    examples = materials.split.held_out_examples
    predicted = (materials.store.lengths(examples) - 1).clip(min=0)
    users = len(set(owners(materials.store, examples)[predicted > 0].tolist()))
    return NO_SCORES.model_copy(update={"tokens": int(predicted.sum()), "users": users})


def planned(state: ServerState, plan: RoundPlan, rounds: int) -> Ledger:
    """Return the state's ledger with all remaining rounds and private scores charged."""
    ledger = _with_scores(state, plan)
    for round in range(state.round, rounds):
        ledger = ledger.charge(round, plan.cost, plan.draws.release_id)
    return ledger


def _with_scores(state: ServerState, plan: RoundPlan) -> Ledger:
    ledger = state.ledger
    for round in plan.score_rounds:
        ledger = plan.charged_score(ledger, round) if round > state.round else ledger
    return ledger


def rounds_paid_for(budget: Budget, state: ServerState, plan: RoundPlan, rounds: int) -> int:
    """Return the number of rounds that the budget covers, after all remaining private scores."""
    if plan.cost.run_rounds is not None:  # one cost for the whole run: all rounds or none
        whole = planned(state, plan, rounds)
        return rounds if budget.spent(whole) <= budget.epsilon else 0
    ledger = _with_scores(state, plan)
    return state.round + budget.affordable(ledger, plan.cost, rounds - state.round)

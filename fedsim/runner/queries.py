"""What was asked of the private text, and what pays for it: a row a question, in every report."""

from __future__ import annotations

from fedsim.accounting.events import RoundCost
from fedsim.clip_policy import AdaptiveClip
from fedsim.config import Config
from fedsim.plan import RoundPlan
from fedsim.report.schema import Query
from fedsim.sampling import Relation
from fedsim.seeding import is_score
from fedsim.state import ServerState

_NOTHING = "nothing pays for it"
_HYPOTHETICAL = "a hypothetical ε alone"


def queries(config: Config, plan: RoundPlan, state: ServerState) -> tuple[Query, ...]:
    """Return what a run asked, the charged questions first.

    Args:
        config: of the run.
        plan: what each round did.
        state: its ledger holds every charged release.
    """
    return (*_charged(config, plan, state), *_uncharged(config, plan, state))


def _charged(config: Config, plan: RoundPlan, state: ServerState) -> list[Query]:
    if plan.noise_multiplier == 0.0:
        return []
    rounds = sum(item.num_rounds for item in state.ledger.items if not is_score(item.release))
    rows = [_row("the clipped sum of a round's units", rounds, plan.cost)]
    if isinstance(plan.clip_policy, AdaptiveClip):
        rows.append(_in_price("how many of a round's units the clip leaves as they are", rounds))
    if plan.sampling.test is not None:
        rows.append(_in_price("whether a round's users are concentrated", rounds))
    if plan.search is not None:
        rows.append(_in_price("the private score of each trial of the search", None))
        rows.append(_in_price("which trial has the best one", 1))
    elif scores := state.ledger.num_releases - rounds:
        question = "held-out loss and accuracy, and the number of users, as private scores"
        rows.append(_row(question, scores, plan.score_cost))
    if plan.sampling.guaranteed:
        return rows
    return [row.model_copy(update={"paid_by": _HYPOTHETICAL, "covered": False}) for row in rows]


def _row(question: str, times: int, cost: RoundCost) -> Query:
    noise = f"noise multiplier {cost.noise_multiplier:.5g}"
    return Query(question=question, times=times, paid_by=noise, covered=True)


def _in_price(question: str, times: int | None) -> Query:
    return Query(question=question, times=times, paid_by="in the price of the above", covered=True)


def _uncharged(config: Config, plan: RoundPlan, state: ServerState) -> list[Query]:
    every = config.training.evaluate_every
    evaluated = 1 + -(-state.round // every)
    rows = [
        (
            "held-out loss, perplexity and accuracy",
            evaluated if config.data.held_out_examples else 0,
        ),
        ("each round's number of units and gradients, training loss and norm", state.round),
        ("the numbers of users, examples and tokens, and of those that were dropped", 1),
    ]
    hidden = plan.relation is Relation.ADD_OR_REMOVE
    privacy = config.privacy
    declared = privacy.declared_num_users if plan.unit == "user" else privacy.declared_num_examples
    if hidden and declared is None and plan.noise_multiplier:
        rows.append((f"how many {plan.unit}s there are, for rates and denominator", 1))
    found = [
        Query(question=question, times=times, paid_by=_NOTHING, covered=False)
        for question, times in rows
        if times
    ]
    chosen = "which settings are good, if they were chosen by looking at earlier runs"
    return [*found, Query(question=chosen, times=None, paid_by=_NOTHING, covered=False)]

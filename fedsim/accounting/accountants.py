"""Accountants by name: ε, δ and ε curves of composed rounds.

All numbers are upper bounds under a named neighbouring relation. The error of floating point is
bounded by a model of it (`composition.py`), not by a proof. Every function takes an accountant by
name, or None for the default of the mechanism; and a relation, or None for the sampler's own.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import dp_accounting
import numpy as np

from fedsim.accounting.events import Composition, Profile, RoundCost, merged
from fedsim.accounting.methods.accountant import Accountant
from fedsim.accounting.search import TRIED
from fedsim.errors import ConfigError, about
from fedsim.registry import part
from fedsim.sampling import Relation

# A δ that is no more than this is not looked at closely. A noise multiplier above this is taken to
# be this, which costs more: grids of losses have a least width.
_NOTHING = 1e-30
_MOST_NOISE = 1e5
_OF_SHIFT = 1e-3  # δ near which a trial's profile decides what a search adds


@lru_cache(maxsize=64)
def accountant_of(name: str) -> Accountant:
    """Return an accountant by name; behind the name there may be its own keys, as JSON.

    Raises:
        ConfigError: no package registered it, or it does not take such keys.

    Examples:
        >>> accountant_of("pld").name
        'pld'
    """
    bare, _, keys = name.partition(" ")
    found = part("accountants", bare, "accountant")
    with about(f"accountant = {name!r}: ", (TypeError, ValueError)):
        built: Accountant = found.build(name, **json.loads(keys or "{}"))
    return built


def choose(
    costs: Sequence[RoundCost],
    accountant: str | None = None,
    relation: Relation | None = None,
) -> tuple[Accountant, Relation]:
    """Return the accountant and the relation for these rounds, by name or by default.

    No name means the sampler's own accountant, as "rdp" for a fixed cohort size; else "pld" for one
    unit per user and "mixture" for more. There "pld" is another word for "mixture", which is the
    PLD of that mechanism. No relation means add-or-remove-one, or replace-one if a sampler does not
    hide the number of units.

    Raises:
        ConfigError: an unknown name, or what the accountant cannot prove.

    Examples:
        >>> from fedsim.sampling import FixedSizeSampling, PoissonSampling
        >>> accountant, relation = choose([RoundCost(PoissonSampling(0.01), 1.0)])
        >>> accountant.name, relation.value
        ('pld', 'add-or-remove-one')
        >>> accountant, relation = choose([RoundCost(FixedSizeSampling(10, 1000), 1.0)])
        >>> accountant.name, relation.value
        ('rdp', 'replace-one')
    """
    several = any(cost.units_per_user > 1 for cost in costs)
    own = [cost.sampling.accountant for cost in costs if cost.sampling.accountant]
    name = accountant or (own[0] if own else "mixture" if several else "pld")
    if name == "pld" and several:
        name = "mixture"
    searches = [cost.search for cost in costs if cost.search is not None]
    if searches and len(set(costs)) > 1:
        raise ConfigError(
            f"accountant = {name!r}: the best of several runs has a price of its own, which is "
            "composed with no other; a shared ledger adds such prices up"
        )
    if accountant is None and any(one.stopping == "poisson" for one in searches):
        name = "rdp"
    hidden = all(cost.sampling.hides_size for cost in costs)
    relation = relation or (Relation.ADD_OR_REMOVE if hidden else Relation.REPLACE)
    chosen = accountant_of(name)
    for cost in costs:
        if reason := _refusal(chosen, cost, relation):
            raise ConfigError(f"accountant = {name!r}, relation = {relation.value!r}: {reason}")
    return chosen, relation


def _refusal(accountant: Accountant, cost: RoundCost, relation: Relation) -> str | None:
    """Return why the accountant cannot price a round, or the search that it is of, or None."""
    if cost.noise_multiplier and cost.kind_of_event is dp_accounting.NonPrivateDpEvent:
        return f"{cost.sampling.kind!r} sampling states no event, so there is no ε"
    if cost.search is None:
        return accountant.refusal(cost, relation)
    if not cost.sampling.sums_alone:
        return f"has no price for the best of several runs with {cost.sampling.kind!r} sampling"
    if cost.search.stopping == "poisson" and accountant.name != "rdp":
        return 'prices a Poisson number of trials by "rdp" alone; take "geometric" or "logarithmic"'
    reasons = (accountant.refusal(part, relation) for part, _ in cost.trial)
    return next(
        (f"of a trial and its private score: {reason}" for reason in reasons if reason), None
    )


def epsilon(
    cost: RoundCost,
    rounds: int,
    delta: float,
    accountant: str | None = None,
    relation: Relation | None = None,
) -> float:
    """Return the smallest ε the accountant certifies for `rounds` rounds at `delta`.

    | case | result |
    |---|---|
    | no rounds | 0 |
    | noise multiplier 0 | inf |
    | delta below what the accountant resolves (about 1e-22 a round for a PLD) | inf |
    | group privacy that diverges | inf |

    Raises:
        ConfigError: delta outside (0, 1), negative rounds, or an unsuitable accountant.

    Examples:
        >>> from fedsim.sampling import PoissonSampling
        >>> users = RoundCost(PoissonSampling(0.01), 1.0)
        >>> examples = RoundCost(PoissonSampling(0.01), 1.0, units_per_user=8)
        >>> [round(epsilon(cost, 100, delta=1e-6), 2) for cost in (users, examples)]
        [0.95, 8.09]
        >>> epsilon(users, 0, delta=1e-6)
        0.0
    """
    return epsilon_of_composition([(cost, rounds)], delta, accountant, relation)


def delta(
    cost: RoundCost,
    rounds: int,
    epsilon: float,
    accountant: str | None = None,
    relation: Relation | None = None,
) -> float:
    """Return the smallest δ the accountant certifies for `rounds` rounds at `epsilon` >= 0.

    No rounds cost 0; a noise multiplier of 0 gives 1.

    Raises:
        ConfigError: negative epsilon or rounds, or an unsuitable accountant.

    Examples:
        >>> from fedsim.sampling import PoissonSampling
        >>> users = RoundCost(PoissonSampling(0.01), 1.0)
        >>> f"{delta(users, 100, epsilon=1.0):.1e}"
        '6.7e-07'
    """
    if not epsilon >= 0.0:
        raise ConfigError(f"epsilon = {epsilon!r}: give a number >= 0")
    found, costs, at = 1e-9, [(cost, rounds)], np.array([epsilon])
    for _ in range(2):  # the second time on a grid that is fine enough for this δ
        profile = profile_of_composition(costs, found, accountant, relation)
        found = float(profile(at)[0])
        if not 0.0 < found < 1.0:
            break
    return found


def epsilon_of_composition(
    costs: Composition,
    delta: float,
    accountant: str | None = None,
    relation: Relation | None = None,
) -> float:
    """Return ε of rounds that need not cost the same, as pairs of a cost and its count.

    Edge cases and errors as for `epsilon`; the accountant must suit every one of the costs.

    Examples:
        >>> from fedsim.sampling import PoissonSampling
        >>> coins = PoissonSampling(0.01)
        >>> costs = [(RoundCost(coins, 1.0), 100), (RoundCost(coins, 2.0), 100)]
        >>> round(epsilon_of_composition(costs, delta=1e-6), 2)
        0.97
    """
    chosen, relation, parts = _asked(costs, delta, accountant, relation)
    if not parts:
        return 0.0
    if any(cost.noise_multiplier == 0.0 for cost, _ in parts):
        return float("inf")
    if total_variation(parts) <= delta:
        return 0.0
    return certified(chosen, tuple(_resolved(parts)), delta, relation)


def profile_of_composition(
    costs: Composition,
    delta: float,
    accountant: str | None = None,
    relation: Relation | None = None,
) -> Profile:
    """Return δ as a function of ε for rounds that need not cost the same; upper bounds.

    Args:
        costs: pairs of a cost and its count; no rounds cost nothing.
        delta: where the function is as exact as `epsilon`, in (0, 1).
        accountant: as in `epsilon`.
        relation: as in `epsilon`.

    Raises:
        ConfigError: as `epsilon`.
    """
    chosen, relation, parts = _asked(costs, delta, accountant, relation)
    if not parts:
        return np.zeros_like
    if any(cost.noise_multiplier == 0.0 for cost, _ in parts):
        return np.ones_like
    if (distance := total_variation(parts)) < _NOTHING:
        return lambda epsilons: np.full(len(epsilons), distance)
    return _profile(chosen, _resolved(parts), delta, relation)


@lru_cache(maxsize=256)  # runs of a sweep share their costs, and a run asks more than once
def certified(
    chosen: Accountant, costs: tuple[tuple[RoundCost, int], ...], delta: float, relation: Relation
) -> float:
    """Return ε, also of a search for the best of several runs: `fedsim.accounting.search`."""
    cost, rounds = costs[0]
    if cost.search is None:
        return chosen.epsilon(costs, delta, relation)
    if (searches := cost.runs(rounds)) > 1:  # basic composition
        return searches * certified(chosen, ((cost, 1),), delta / searches, relation)
    if chosen.name == "rdp":
        return chosen.epsilon(costs, delta, relation)
    of_trial = chosen.epsilon(_resolved(cost.trial), delta / cost.search.trials, relation)
    return _shift(chosen, cost, relation) + of_trial


def _profile(chosen: Accountant, costs: Composition, delta: float, relation: Relation) -> Profile:
    cost, rounds = costs[0]
    if cost.search is None:
        return chosen.profile(costs, delta, relation)
    if (searches := cost.runs(rounds)) > 1:
        alone = _profile(chosen, [(cost, 1)], delta / searches, relation)
        return lambda epsilons: np.minimum(searches * alone(epsilons / searches), 1.0)
    if chosen.name == "rdp":
        return chosen.profile(costs, delta, relation)
    trials, shift = cost.search.trials, _shift(chosen, cost, relation)
    of_trial = chosen.profile(_resolved(cost.trial), delta / trials, relation)
    return lambda epsilons: np.where(
        epsilons < shift, 1.0, np.minimum(trials * of_trial(np.maximum(epsilons - shift, 0.0)), 1.0)
    )


def _shift(chosen: Accountant, cost: RoundCost, relation: Relation) -> float:
    """Return what the search adds to ε: see `Search.shift`."""
    if cost.search is None:
        return 0.0
    of_trial = chosen.profile(_resolved(cost.trial), _OF_SHIFT, relation)
    return cost.search.shift(of_trial(TRIED), TRIED)


def total_variation(costs: Composition) -> float:
    """Return a bound on the total variation, which is the δ at ε = 0; inf where none is known.

    Each round, of cyclic sampling each turn, a user's coins fall with probability at most
    units · q, and then what is released moves by at most 2 units of sensitivity, replacing and
    displacing included, which is erf(2 units/(z√8)) in total variation; the rounds add up. Or all
    rounds together, as if every coin had fallen, are one Gaussian mechanism. Where this is below δ
    no accountant is asked: its grid would have no width.
    """
    if any(not cost.sampling.sums_alone or cost.search is not None for cost, _ in costs):
        return math.inf
    shifts = [2.0 * cost.units_per_user / cost.noise_multiplier for cost, _ in costs]
    apart = [math.erf(shift / math.sqrt(8.0)) for shift in shifts]
    coins = [cost.coins(rounds) for cost, rounds in costs]
    fell = [
        cost.units_per_user * rate * times
        for (cost, _), (rate, times) in zip(costs, coins, strict=True)
    ]
    together = math.hypot(
        *(shift * math.sqrt(times) for shift, (_, times) in zip(shifts, coins, strict=True))
    )
    one_by_one = math.fsum(map(operator.mul, fell, apart))
    return min(1.0001 * one_by_one, math.erf(together / math.sqrt(8.0)))


def _asked(
    costs: Composition, delta: float, accountant: str | None, relation: Relation | None
) -> tuple[Accountant, Relation, Composition]:
    """Return accountant and relation, and each cost once, with all its rounds."""
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"delta = {delta!r}: give a number in (0, 1)")
    for _, rounds in costs:
        if not rounds >= 0 or rounds % 1:  # a NaN too
            raise ConfigError(f"rounds = {rounds!r}: give an integer >= 0")
    return (*choose([cost for cost, _ in costs], accountant, relation), merged(costs))


def _resolved(costs: Composition) -> Composition:
    """Return costs that are no less, and that a grid of losses can hold."""
    return [
        (replace(cost, noise_multiplier=min(cost.noise_multiplier, _MOST_NOISE)), rounds)
        for cost, rounds in costs
    ]

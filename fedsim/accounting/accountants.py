"""Accountants by name: ε, δ and ε curves of composed rounds.

All numbers are upper bounds under a named neighbouring relation. A model bounds the rounding error
(`composition.py`); this bound is not proved. Every function takes an accountant by name, or None
for the mechanism's default; and a relation, or None for the sampler's default.
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

_NOTHING = 1e-30  # a total variation below this needs no accountant
# Larger noise multipliers are priced as this one, which is safe: loss grids have a minimum width.
_MOST_NOISE = 1e5
_OF_SHIFT = 1e-3  # δ at which a trial's profile is exact for `Search.shift`


@lru_cache(maxsize=64)
def accountant_of(name: str) -> Accountant:
    """Return an accountant by name; its own keys may follow the name, as JSON.

    Raises:
        ConfigError: the name is not registered, or the accountant refuses the keys.

    Examples:
        >>> accountant_of("pld").name
        'pld'
    """
    bare, _, keys = name.partition(" ")
    loaded = part("accountants", bare, "accountant")
    with about(f"accountant = {name!r}: ", (TypeError, ValueError)):
        built: Accountant = loaded.build(name, **json.loads(keys or "{}"))
    return built


def choose(
    costs: Sequence[RoundCost],
    accountant: str | None = None,
    relation: Relation | None = None,
) -> tuple[Accountant, Relation]:
    """Return the accountant and the relation for these rounds, by name or by default.

    Without a name, the sampler's own accountant is used, such as "rdp" for a fixed cohort size.
    Otherwise it is "pld" for one unit per user and "mixture" for more; "pld" then also means
    "mixture". Without a relation, it is add-or-remove-one, or replace-one if a sampler does not
    hide the number of units.

    Raises:
        ConfigError: the name is unknown, or the accountant has no proof for these rounds.

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
            f"accountant = {name!r}: the price of the best of several runs cannot be composed "
            "with other prices; a shared ledger adds such prices up"
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
    """Return why the accountant cannot price a round or its search, or None."""
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
    """Return the smallest ε that the accountant certifies for `rounds` rounds at `delta`.

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
    """Return the smallest δ that the accountant certifies for `rounds` rounds at `epsilon` >= 0.

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
    estimate, costs, at = 1e-9, [(cost, rounds)], np.array([epsilon])
    for _ in range(2):  # the second pass uses a grid that is fine enough for this δ
        profile = profile_of_composition(costs, estimate, accountant, relation)
        estimate = float(profile(at)[0])
        if not 0.0 < estimate < 1.0:
            break
    return estimate


def epsilon_of_composition(
    costs: Composition,
    delta: float,
    accountant: str | None = None,
    relation: Relation | None = None,
) -> float:
    """Return ε of rounds with different costs, given as pairs of a cost and its count.

    Edge cases and errors as for `epsilon`; the accountant must have a proof for every cost.

    Examples:
        >>> from fedsim.sampling import PoissonSampling
        >>> coins = PoissonSampling(0.01)
        >>> costs = [(RoundCost(coins, 1.0), 100), (RoundCost(coins, 2.0), 100)]
        >>> round(epsilon_of_composition(costs, delta=1e-6), 2)
        0.97
    """
    chosen, relation, parts = _checked(costs, delta, accountant, relation)
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
    """Return δ as a function of ε for rounds with different costs; upper bounds.

    Args:
        costs: pairs of a cost and its count; may be empty.
        delta: δ near which the function is as exact as `epsilon`, in (0, 1).
        accountant: as in `epsilon`.
        relation: as in `epsilon`.

    Raises:
        ConfigError: as `epsilon`.
    """
    chosen, relation, parts = _checked(costs, delta, accountant, relation)
    if not parts:
        return np.zeros_like
    if any(cost.noise_multiplier == 0.0 for cost, _ in parts):
        return np.ones_like
    if (distance := total_variation(parts)) < _NOTHING:
        return lambda epsilons: np.full(len(epsilons), distance)
    return _profile(chosen, _resolved(parts), delta, relation)


@lru_cache(maxsize=256)  # a run needs the same ε several times, and runs of a sweep share costs
def certified(
    chosen: Accountant, costs: tuple[tuple[RoundCost, int], ...], delta: float, relation: Relation
) -> float:
    """Return ε of some rounds, or of searches for the best run (`fedsim.accounting.search`)."""
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
    """Return the amount that a search adds to ε; see `Search.shift`."""
    if cost.search is None:
        return 0.0
    of_trial = chosen.profile(_resolved(cost.trial), _OF_SHIFT, relation)
    return cost.search.shift(of_trial(TRIED), TRIED)


def total_variation(costs: Composition) -> float:
    """Return a bound on the total variation, that is, δ at ε = 0; inf if no bound is known.

    Returns the smaller of two bounds. First: in each round (for cyclic sampling, in each turn) a
    user takes part with probability at most units · q. The release then moves by at most 2 units
    times the bound, including replacement and displacement: erf(2 units/(z√8)) in total variation.
    The rounds add up. Second: if users took part in all rounds, the run would be one Gaussian
    mechanism. If the result is at most δ, ε is 0; an accountant's grid would have no width.
    """
    if any(not cost.sampling.sums_alone or cost.search is not None for cost, _ in costs):
        return math.inf
    shifts = [2.0 * cost.units_per_user / cost.noise_multiplier for cost, _ in costs]
    apart = [math.erf(shift / math.sqrt(8.0)) for shift in shifts]
    coins = [cost.coins(rounds) for cost, rounds in costs]
    drawn = [
        cost.units_per_user * rate * times
        for (cost, _), (rate, times) in zip(costs, coins, strict=True)
    ]
    together = math.hypot(
        *(shift * math.sqrt(times) for shift, (_, times) in zip(shifts, coins, strict=True))
    )
    one_by_one = math.fsum(map(operator.mul, drawn, apart))
    return min(1.0001 * one_by_one, math.erf(together / math.sqrt(8.0)))


def _checked(
    costs: Composition, delta: float, accountant: str | None, relation: Relation | None
) -> tuple[Accountant, Relation, Composition]:
    """Check the arguments; return the accountant, the relation and the merged costs."""
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"delta = {delta!r}: give a number in (0, 1)")
    for _, rounds in costs:
        if not rounds >= 0 or rounds % 1:  # also true for NaN
            raise ConfigError(f"rounds = {rounds!r}: give an integer >= 0")
    return (*choose([cost for cost, _ in costs], accountant, relation), merged(costs))


def _resolved(costs: Composition) -> Composition:
    """Return the costs with noise limited to `_MOST_NOISE`; they are never lower."""
    return [
        (replace(cost, noise_multiplier=min(cost.noise_multiplier, _MOST_NOISE)), rounds)
        for cost, rounds in costs
    ]

"""PLD accountant: ε and δ from privacy loss distributions, on a grid refined as needed.

A PLD is rounded pessimistically, so a coarse grid gives a larger ε, never a wrong one. The required
width varies: 1e-2 for a large ε, 1e-5 for a million small rounds. So ε is computed on a coarse grid
first, then on grids each four times finer, until finer grids would hardly reduce it. The last grid
takes more time than all others together.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import dp_accounting
import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_gaussian_mechanism,
)
from scipy import special, stats

from fedsim.accounting.events import Composition, Profile, RoundCost
from fedsim.accounting.methods.accountant import Accountant
from fedsim.accounting.methods.composition import ComposedPld, LongWindowError
from fedsim.accounting.methods.mixture_pld import MAX_POINTS, drawn_or_nothing, mixture_pld
from fedsim.errors import ConfigError
from fedsim.sampling import Relation

WIDTH = 1e-4
"""Grid width of dp_accounting, in nats; other widths are this times a power of four."""

_REFINEMENT = 4
_FIRST_POINTS = 20  # approximate number of points of the first grid
_WIDEST = 10.0  # maximum width in nats; wider grids are useless, and overflow
_MOST_UPWARD = MAX_POINTS // 3  # maximum points for positive losses; spans are rough
_TOLERANCE = 1e-4  # relative reduction of ε or δ on finer grids that is ignored
_TOLERANCE_BEYOND = 7e-4  # the same for dp_accounting's width or finer
_NEARLY_NOTHING = 1e-22  # mass of a component that a PLD leaves out, about e^-50
# For a smaller rate, 1 - q has too few digits: assume that a user is found whenever drawn.
_LEAST_RATE = 1e-10
_MOST_INFINITE = 3  # stop after this many grids with an infinite answer


_HAVING_PLD = (
    dp_accounting.NonPrivateDpEvent,  # infinite
    dp_accounting.PoissonSampledDpEvent,
    dp_event.MixtureOfGaussiansDpEvent,
    dp_event.TruncatedSubsampledGaussianDpEvent,
)


@dataclass(frozen=True)
class PldAccountant(Accountant):
    """Numerical composition of PLDs, tight up to the grid width."""

    def refusal(self, cost: RoundCost, relation: Relation) -> str | None:
        """Return why this accountant cannot prove anything about a round, or None."""
        if (own := cost.sampling.accountant) not in (None, "pld", "mixture"):
            return f"has no PLD of {cost.sampling.kind!r} sampling; use {own!r}"
        if (event := cost.kind_of_event) not in _HAVING_PLD:
            return f"has no PLD of the {event.__name__} of {cost.sampling.kind!r} sampling"
        if cost.units_per_user > 1 and relation is Relation.REPLACE:
            return (
                "a user with several units in the pool has no proved bound under replace-one; "
                "use add-or-remove-one or zero-out-one"
            )
        cyclic = cost.sampling.kind == "cyclic"
        if cyclic and cost.units_per_user > 1 and relation is Relation.FIXED_GRAPH:
            return (
                "cyclic sampling keeps an owner's units in one group, but a unit with several "
                "owners would be in several groups; use Poisson sampling, or one unit per owner"
            )
        return None

    def epsilon(self, costs: Composition, delta: float, relation: Relation) -> float:
        """Return ε at δ; inf if δ is below the resolution of a PLD, about 1e-22 a round."""
        return solve_epsilon(costs, delta, relation)[0]

    def profile(self, costs: Composition, delta: float, relation: Relation) -> Profile:
        """Return δ as a function of ε, on the grid that settles ε at `delta`."""
        return solve_epsilon(costs, delta, relation)[1].deltas


def solve_epsilon(
    costs: Composition, delta: float, relation: Relation
) -> tuple[float, ComposedPld]:
    """Return ε at δ and the PLD of the composition on the grid that settled it."""

    def at(width: float) -> float:
        return float(composed(tuple(costs), relation, width).get_epsilon_for_delta(delta))

    epsilon, width = refined(at, costs)
    return epsilon, composed(tuple(costs), relation, width)


@functools.lru_cache(maxsize=4)  # a PLD takes megabytes; several δ need the same one
def composed(
    costs: tuple[tuple[RoundCost, int], ...], relation: Relation, width: float
) -> ComposedPld:
    """Return the PLD of rounds with different costs, on one grid."""
    return ComposedPld.of(
        [(single_round(cost, relation, width), cost.events(rounds)) for cost, rounds in costs],
        width,
    )


@functools.lru_cache(maxsize=8)  # of one cost on several grids
def single_round(cost: RoundCost, relation: Relation, width: float) -> PrivacyLossDistribution:
    """Return the PLD of one round on a grid of this width.

    Raises:
        ValueError: the round has no PLD.
    """
    match cost.event:
        case dp_accounting.PoissonSampledDpEvent(probability, dp_accounting.GaussianDpEvent(noise)):
            return _sampled_gaussian(noise, probability, relation, width)
        case dp_event.MixtureOfGaussiansDpEvent(noise, sensitivities, probabilities):
            return mixture_pld(noise, sensitivities, probabilities, width)
        case dp_event.TruncatedSubsampledGaussianDpEvent() as event:
            return _truncated(event, relation, width)
    raise ValueError(f"{cost}: has no privacy loss distribution")


def _sampled_gaussian(
    noise: float, probability: float, relation: Relation, width: float
) -> PrivacyLossDistribution:
    if relation is Relation.REPLACE:
        return _replacing(noise, probability, width)
    return mixture_pld(noise, [0.0, 1.0], [1.0 - probability, probability], width)


def _replacing(noise: float, probability: float, width: float) -> PrivacyLossDistribution:
    """Return the PLD of (1 - q) N(0, σ²) + q N(-1, σ²) against the same with N(1, σ²)."""
    if probability < _LEAST_RATE:
        return drawn_or_nothing(width, probability)
    return from_gaussian_mechanism(
        noise,
        sampling_prob=probability,
        value_discretization_interval=width,
        neighboring_relation=Relation.REPLACE.of_dp_accounting,
    )


def _truncated(
    event: dp_event.TruncatedSubsampledGaussianDpEvent, relation: Relation, width: float
) -> PrivacyLossDistribution:
    """Return a PLD of truncated sampling that holds for every population up to the event's.

    Let c be the cap. Whether the *other* units reach it does not depend on the user, so it may be
    revealed: the round is a mixture of two mechanisms. First, if they do not reach it, the round is
    plain sampling at rate q. Second, if m >= c others are drawn, a drawn user is kept with
    probability c / (m + 1) and displaces one of the c kept units, uniformly. Reveal these c units
    and the displaced one too, as they are drawn in the same way with and without the user. Under
    add-or-remove-one, the sum without the user is then one point. With the user, it is at most 2
    away, at a rate of q c / (m + 1) <= q: plain sampling at half the noise. Under the other
    relations the user displaces a unit in both neighbours, with updates at most 2 apart: replacing
    at half the noise bounds this.

    We use the rate q. Then the second mechanism costs at least as much as the first, in both
    directions and at every ε. First, a mechanism at full noise is a post-processing of the same one
    at half the noise (halve, add noise). Second, replacing costs at least as much as adding: where
    the loss is positive, one of its two densities is the same, and the other increases the loss. So
    the cost of the mixture grows with the probability of the second mechanism, which is largest at
    the declared population.

    dp_accounting takes both probabilities at the event's population, and replacing under every
    relation. Its second probability, and so its ε, falls as the population grows. With
    q c / (c + 1), a population below a small cap, which is never cut, would cost more than a larger
    population.
    """
    noise, probability = event.noise_multiplier, event.sampling_probability
    others = event.dataset_size - 1
    reached = float(stats.binom.sf(event.truncated_batch_size - 1, others, probability))
    plain = _sampled_gaussian(noise, probability, relation, width)
    if reached == 0.0:
        return plain
    if relation is Relation.ADD_OR_REMOVE:
        displacing = _sampled_gaussian(noise / 2.0, probability, relation, width)
    else:
        displacing = _replacing(noise / 2.0, probability, width)
    return displacing.compute_mixture(plain, reached)


def refined(at: Callable[[float], float], costs: Composition) -> tuple[float, float]:
    """Return the value and width of the first grid that is fine enough, or the finest that fits.

    Args:
        at: returns ε on a grid of a width in nats.
        costs: the rounds.

    Raises:
        ConfigError: losses exceed every grid, as there is too little noise or too many rounds.
    """
    span = max(_span(cost) for cost, _ in costs)
    if span / _WIDEST > _MOST_UPWARD / _REFINEMENT:
        least = min(cost.noise_multiplier for cost, _ in costs)
        raise ConfigError(
            f"noise_multiplier = {least:g}: too little noise for a PLD, as ε is in the millions; "
            "give more noise"
        )
    power = math.floor(math.log(min(span / _FIRST_POINTS, _WIDEST) / WIDTH, _REFINEMENT))
    values: list[float] = []
    for exponent in itertools.count(power, -1):
        width = WIDTH * float(_REFINEMENT) ** exponent
        try:
            values.append(at(width))
        except LongWindowError:
            if not values:
                raise
            return values[-1], width * _REFINEMENT
        too_many = _REFINEMENT * span / width > _MOST_UPWARD
        if too_many or _settled(values, _TOLERANCE if width > WIDTH else _TOLERANCE_BEYOND):
            return values[-1], width
    raise AssertionError("unreachable: grids only get finer")


def _settled(values: Sequence[float], tolerance: float) -> bool:
    """Return whether finer grids would change the last value by at most a relative `tolerance`.

    The error shrinks by a factor r from grid to grid (16 once the grid resolves the losses, less
    before). The last two differences give r; the remaining error is the last difference / (r - 1).
    """
    if math.isinf(values[-1]):
        return len(values) >= _MOST_INFINITE
    if values[-1] == 0.0:
        return True
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 3:
        return False
    before, last = finite[-3] - finite[-2], finite[-2] - finite[-1]
    if last <= 0.0:
        return True
    ratio = float(np.clip(before / last, 1.5, _REFINEMENT**2))
    return last / (ratio - 1.0) <= tolerance * values[-1]


def _span(cost: RoundCost) -> float:
    """Return the approximate maximum loss of one round, in nats."""
    event, noise = cost.event, cost.noise_multiplier
    counts, weights = np.array([1.0]), np.array([cost.sampling.probability])
    if isinstance(event, dp_event.MixtureOfGaussiansDpEvent):
        weights = np.asarray(event.sampling_probs)[1:]  # with the user in: else the loss is 0
        likely = weights >= min(_NEARLY_NOTHING, float(weights.max()))
        counts, weights = 1.0 + np.flatnonzero(likely), weights[likely]
    highest = counts[-1] + 10.0 * noise
    losses = np.log(weights) + counts * (highest - 0.5 * counts) / noise**2
    return float(np.logaddexp(0.0, special.logsumexp(losses)))

"""Find the smallest noise multiplier that meets an (ε, δ), with few evaluations of ε.

The first guess comes from the central limit theorem. Secant steps in log σ follow, as log ε is
nearly linear in it. They stay between a noise known to be too small and one known to be enough.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable

import dp_accounting
import numpy as np
from scipy import optimize, special

from fedsim.accounting.accountants import choose, epsilon_of_composition
from fedsim.accounting.events import Composition, RoundCost
from fedsim.accounting.rounding import round_up
from fedsim.accounting.search import Search
from fedsim.errors import ConfigError, about
from fedsim.sampling import Relation, Sampling, binomial_probabilities
from fedsim.utils.cache import remembered

_DIGITS = 5  # significant digits of the result: a step of at most 1e-4 of its value
_SLACK = 4e-4  # stop when ε is below the target by at most this relative amount
_SMALLEST = 0.05  # smallest noise considered: below, privacy is nominal and the PLDs are huge
_MOST = 1e4  # noise at which rounds cost almost nothing
_SECANT_STEPS = 8  # afterwards steps by a factor of e, and bisection


def calibrate_noise_multiplier(
    *,
    sampling: Sampling,
    units_per_user: int = 1,
    rounds: int,
    epsilon: float,
    delta: float,
    accountant: str | None = None,
    relation: Relation | None = None,
    search: Search | None = None,
    beside: Composition = (),
) -> float:
    """Return the smallest noise multiplier whose `rounds` rounds are (epsilon, delta)-DP.

    The result has five significant digits and is on the safe side: the same accountant computed its
    ε, which is at most `epsilon`. It is also at least `epsilon` * (1 - 2e-3), unless the result is
    0.05, the smallest noise considered.
    With a search, ε is that of the whole search. `beside` are other releases at a fixed price.
    Results are cached under `fedsim.utils.files.cache_dir()`.

    Raises:
        ConfigError: an argument is out of range, the accountant is unsuitable, delta is so large
            that no noise is needed, or no noise reaches the target.

    Examples:
        >>> from fedsim.sampling import PoissonSampling
        >>> noise = calibrate_noise_multiplier(
        ...     sampling=PoissonSampling(0.01), rounds=100, epsilon=2.0, delta=1e-6
        ... )
        >>> round(noise, 3)
        0.802
    """
    if not (epsilon > 0.0 and math.isfinite(epsilon)):
        raise ConfigError(f"epsilon = {epsilon!r}: give a finite number > 0")
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"delta = {delta!r}: give a number in (0, 1)")
    if rounds < 1:
        raise ConfigError(f"rounds = {rounds!r}: give an integer >= 1")
    with about(""):
        unit_noise = RoundCost(sampling, 1.0, units_per_user, search)
    _refuse_empty_promise(unit_noise, rounds, delta)
    chosen, relation = choose([unit_noise, *(cost for cost, _ in beside)], accountant, relation)
    inputs = {
        "round": unit_noise.to_json(),
        "rounds": rounds,
        "epsilon": epsilon,
        "delta": delta,
        "accountant": chosen.name,
        "relation": relation.value,
        "beside": [[cost.to_json(), count] for cost, count in beside],
    }

    def spent(noise_multiplier: float) -> float:
        cost = dataclasses.replace(unit_noise, noise_multiplier=noise_multiplier)
        return epsilon_of_composition([(cost, rounds), *beside], delta, chosen.name, relation)

    def solved() -> float:
        noise_multiplier = least_noise(spent, unit_noise, rounds, epsilon, delta)
        if noise_multiplier is None:
            if beside or search is not None:
                raise ConfigError(
                    f"epsilon = {epsilon}, delta = {delta}: cannot be kept with any noise of the "
                    f"rounds: the releases beside them already cost {spent(_MOST):.4g}; give "
                    f"the scores more noise{', make fewer trials,' if search else ''} or give a "
                    "larger epsilon"
                )
            raise ConfigError(
                f"epsilon = {epsilon}, delta = {delta}: accountant {chosen.name!r} cannot certify "
                "this with any noise; give fewer rounds, a larger delta (a PLD "
                "resolves about 1e-22 a round) or a larger epsilon"
            )
        return noise_multiplier

    return remembered("calibration", inputs, solved)


def _refuse_empty_promise(cost: RoundCost, rounds: int, delta: float) -> None:
    """Raise if delta is at least the probability that a user is ever drawn: it needs no noise."""
    if cost.sampling.accountant == "random-allocation":
        return  # every user is drawn with certainty
    probability, times = cost.coins(rounds)
    if probability == 1.0:
        return
    coins = cost.units_per_user * times
    drawn = -math.expm1(coins * math.log1p(-probability))
    if delta >= drawn:
        raise ConfigError(
            f"delta = {delta}: is at least {drawn:.3g}, the probability that a user is ever drawn, "
            "so it gives no protection; give a smaller delta"
        )


def least_noise(
    spent: Callable[[float], float],
    unit_noise: RoundCost,
    rounds: int,
    target: float,
    delta: float,
) -> float | None:
    """Return the smallest five-digit noise multiplier with ε <= target; None if none exists.

    Stops once ε is within `_SLACK` below the target, or the bounds have no five-digit number
    between them.
    """
    # Upper end: noise without amplification, times 2 for replacing and 2 for rounding.
    gaussian = float(dp_accounting.get_sigma_gaussian(target, delta))
    largest = max(4.0 * unit_noise.units_per_user * math.sqrt(rounds) * gaussian, _SMALLEST)
    guess = _central_limit_guess(unit_noise, rounds, target, delta, largest)
    noise = round_up(min(max(guess, _SMALLEST), largest), _DIGITS)
    low, high, slope = 0.0, math.inf, -1.2
    previous: tuple[float, float] | None = None
    for count in itertools.count(1):
        value = spent(noise)
        # ε may be 0 or infinite: the limits keep its logarithm finite.
        position, excess = math.log(noise), math.log(min(max(value / target, 1e-2), 1e6))
        if excess > 0.0:
            low = noise
            if noise >= largest:
                return None
        else:
            high = noise
        if previous is not None:
            measured = (excess - previous[1]) / (position - previous[0])
            slope = measured if measured < -0.1 else slope
        if -_SLACK <= excess <= 0.0:
            break
        previous = (position, excess)
        step = (excess + _SLACK / 2) / -slope if count < _SECANT_STEPS else math.copysign(1, excess)
        noise = _next(position + min(max(step, -1.0), 1.0), low, high, largest)
        if noise >= high:
            break
    return high


def _next(log_noise: float, low: float, high: float, largest: float) -> float:
    """Return the proposed noise multiplier, or one between the bounds if it is outside them.

    Returns `high` if no five-digit number is between the bounds.
    """
    noise = round_up(min(max(math.exp(log_noise), _SMALLEST), largest), _DIGITS)
    if low < noise < high:
        return noise
    if low == 0.0:  # the step was too short: go down by at least one five-digit number
        return max(round_up(high * (1.0 - 2e-4), _DIGITS), _SMALLEST)
    if math.isinf(high):
        return round_up(low * (1.0 + 2e-4), _DIGITS)
    return round_up(math.sqrt(low * high), _DIGITS)


def _central_limit_guess(
    unit_noise: RoundCost, rounds: int, target: float, delta: float, largest: float
) -> float:
    """Return the σ at which `rounds` rounds approximate one Gaussian mechanism of the target.

    By the central limit theorem of Gaussian DP (Dong et al. 2022; Bu et al. 2020), many rounds
    approach μ² = rounds * (E exp(B B' / σ²) - 1). B and B' are independent counts of a user's
    sampled units, and E exp(B B' / σ²) = E (1 - p + p exp(B / σ²))^K.
    """
    units = unit_noise.units_per_user
    probability, rounds = unit_noise.coins(rounds)
    log_weights = np.log(
        np.maximum(binomial_probabilities(units, probability), np.finfo(float).tiny)
    )
    counts = np.arange(units + 1)
    log_target = -2.0 * math.log(float(dp_accounting.get_sigma_gaussian(target, delta)))

    def gap(log_noise: float) -> float:
        exponent = counts * math.exp(-2.0 * log_noise)
        # log(1 - p + p e^x) without overflow of e^x and without log(0) at p = 1
        inner = np.logaddexp(exponent + math.log(probability), _log1m(probability))
        log_moment = float(special.logsumexp(log_weights + units * inner))
        return math.log(rounds) + _log_expm1(log_moment) - log_target

    lowest = math.log(units * 0.02)
    if gap(math.log(largest)) >= 0.0 or gap(lowest) <= 0.0:
        return largest
    return math.exp(float(optimize.brentq(gap, lowest, math.log(largest), xtol=1e-4)))


def _log1m(probability: float) -> float:
    return math.log1p(-probability) if probability < 1.0 else -math.inf


def _log_expm1(value: float) -> float:
    """Return log(e^value - 1) for large and small values; -inf for value <= 0."""
    if value > 50.0:
        return value
    return math.log(math.expm1(value)) if value > 0.0 else -math.inf

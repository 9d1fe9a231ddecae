"""The smallest noise multiplier that keeps a promise (ε, δ), found with few PLD builds.

A build of the privacy loss distribution is all the cost, so: guess by the central limit
theorem, bracket and solve on a grid ten times coarser, and finish on the accountant's own grid
with secant steps in log σ, where log ε is nearly straight.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
from scipy import optimize, special

from fedsim.accounting.accountants import Accountant, resolve_accountant
from fedsim.accounting.accountants import epsilon as epsilon_of
from fedsim.accounting.events import RoundCost, binomial_probabilities
from fedsim.accounting.rounding import round_up
from fedsim.errors import ConfigError
from fedsim.paths import cache_dir, write_atomically

_DIGITS = 5  # of the returned noise multiplier: a step of at most 1e-4 of its value
_SLACK = 4e-4  # an ε this close below the target, relatively, ends the search
_SMALLEST = 0.05  # least noise considered: below, privacy is nominal and the PLDs are huge
_SECANT_STEPS = 8  # then strides of e, and bisection: log ε was not nearly straight after all
_COARSENING = 10.0  # of the grid while searching: a build takes a tenth of the time


def calibrate_noise_multiplier(
    *,
    sampling_probability: float,
    units_per_user: int,
    rounds: int,
    epsilon: float,
    delta: float,
    accountant: Accountant | str | None = None,
) -> float:
    """Return the smallest noise multiplier whose `rounds` rounds are (epsilon, delta)-DP.

    The result has five significant digits and is on the safe side: its own ε, by the same
    accountant, was computed and is at most `epsilon`, and at least `epsilon` * (1 - 2e-3),
    unless the result is 0.05: less noise than that is not considered.
    Results are cached under `fedsim.paths.cache_dir()`.

    Raises:
        ConfigError: an argument out of range, an unsuitable accountant, a delta that needs no
            noise at all, or a target that the accountant cannot certify with any noise.
    """
    if not (epsilon > 0.0 and math.isfinite(epsilon)):
        raise ConfigError(f"epsilon = {epsilon!r}: give a finite number > 0")
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"delta = {delta!r}: give a number in (0, 1)")
    if rounds < 1:
        raise ConfigError(f"rounds = {rounds!r}: give an integer >= 1")
    try:
        unit_noise = RoundCost(sampling_probability, 1.0, units_per_user)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    _refuse_empty_promise(unit_noise, rounds, delta)
    chosen = resolve_accountant(accountant, units_per_user)
    inputs: dict[str, Any] = {
        "sampling_probability": sampling_probability,
        "units_per_user": units_per_user,
        "rounds": rounds,
        "epsilon": epsilon,
        "delta": delta,
        "accountant": [chosen.name, chosen.discretisation],
        "dp_accounting": version("dp-accounting"),
    }
    path = _cache_path(inputs)
    if (cached := _read_cache(path, inputs)) is not None:
        return cached
    found = _search(unit_noise, rounds, epsilon, delta, chosen)
    with suppress(OSError):  # a cache that cannot be written is no reason to fail
        content = json.dumps({"inputs": inputs, "noise_multiplier": found}, indent=1)
        write_atomically(path, content)
    return found


def _refuse_empty_promise(cost: RoundCost, rounds: int, delta: float) -> None:
    """Raise if delta covers the chance that a user is drawn at all: any noise would do then."""
    if cost.sampling_probability == 1.0:
        return
    coins = cost.units_per_user * rounds
    drawn = -math.expm1(coins * math.log1p(-cost.sampling_probability))
    if delta >= drawn:
        raise ConfigError(
            f"delta = {delta}: at least the probability {drawn:.3g} that a user is drawn at all, "
            "so it promises nothing; give a smaller delta"
        )


def _search(
    unit_noise: RoundCost, rounds: int, target: float, delta: float, accountant: Accountant
) -> float:
    def evaluate(noise_multiplier: float, by: Accountant) -> float:
        cost = dataclasses.replace(unit_noise, noise_multiplier=noise_multiplier)
        return epsilon_of(cost, rounds, delta, by)

    coarse = accountant
    if accountant.discretisation is not None:
        coarse = dataclasses.replace(
            accountant, discretisation=accountant.discretisation * _COARSENING
        )
    # Noise that does without amplification is an upper end; twice it leaves room for rounding.
    gaussian = float(dp_accounting.get_sigma_gaussian(target, delta))
    largest = max(2.0 * unit_noise.units_per_user * math.sqrt(rounds) * gaussian, _SMALLEST)
    start = _Start(_central_limit_guess(unit_noise, rounds, target, delta, largest), -1.2)
    near = _secant(lambda z: evaluate(z, coarse), start, target, largest)
    # Rounding makes a coarser grid looser, so what it cannot reach the finer one still may.
    found = _secant(lambda z: evaluate(z, accountant), near or start, target, largest)
    if found is None:
        raise ConfigError(
            f"epsilon = {target}, delta = {delta}: accountant {accountant.name!r} cannot certify "
            "this with any noise; give a larger delta (a PLD resolves about 1e-15 at best) "
            "or a larger epsilon"
        )
    return found.noise_multiplier


@dataclass(frozen=True)
class _Start:
    """Where a search begins or ended, with d log ε / d log σ there."""

    noise_multiplier: float
    slope: float


def _secant(
    evaluate: Callable[[float], float], start: _Start, target: float, largest: float
) -> _Start | None:
    """Return the smallest five-digit noise multiplier with ε <= target; None if none reaches it.

    Secant steps in (log σ, log ε), kept inside what is known to be too little and enough noise.
    The search ends once ε lies within `_SLACK` below the target, or no five-digit number is
    left between too little and enough.
    """
    low, high, slope = 0.0, math.inf, start.slope
    noise = round_up(min(max(start.noise_multiplier, _SMALLEST), largest), _DIGITS)
    previous: tuple[float, float] | None = None
    for count in itertools.count(1):
        value = evaluate(noise)
        # ε reaches 0 at a finite σ; the floor keeps the logarithm finite there.
        position, excess = math.log(noise), math.log(max(value / target, 1e-2))
        if excess > 0.0:
            low = noise
            if noise >= largest or math.isinf(value):
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
    return _Start(high, slope)


def _next(log_noise: float, low: float, high: float, largest: float) -> float:
    """Return where to look next: as proposed if that is between the bounds, else between them.

    `high` itself comes back when no five-digit number is left between the bounds.
    """
    noise = round_up(min(max(math.exp(log_noise), _SMALLEST), largest), _DIGITS)
    if low < noise < high:
        return noise
    if low == 0.0:  # a step too short to leave `high`: at least one five-digit number down
        return max(round_up(high * (1.0 - 2e-4), _DIGITS), _SMALLEST)
    if math.isinf(high):
        return round_up(low * (1.0 + 2e-4), _DIGITS)
    return round_up(math.sqrt(low * high), _DIGITS)


def _central_limit_guess(
    unit_noise: RoundCost, rounds: int, target: float, delta: float, largest: float
) -> float:
    """Return the σ at which `rounds` rounds look like one Gaussian mechanism of the right μ.

    By the central limit theorem of Gaussian DP (Dong et al. 2022; Bu et al. 2020) many
    rounds approach μ² = rounds * (E exp(B B' / σ²) - 1), with B and B' independent numbers of
    a user's sampled units; E exp(B B' / σ²) = E (1 - p + p exp(B / σ²))^K.
    """
    units, probability = unit_noise.units_per_user, unit_noise.sampling_probability
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
    """Return log(e^value - 1) for large and small values; -inf where rounding leaves nothing."""
    if value > 50.0:
        return value
    return math.log(math.expm1(value)) if value > 0.0 else -math.inf


def _cache_path(inputs: dict[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    return cache_dir() / "calibration" / f"{digest}.json"


def _read_cache(path: Path, inputs: dict[str, Any]) -> float | None:
    """Return the cached value, or None where the file is missing, damaged or of other inputs."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        value = content["noise_multiplier"]
        sound = content["inputs"] == inputs and isinstance(value, float) and 0.0 < value < math.inf
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return value if sound else None

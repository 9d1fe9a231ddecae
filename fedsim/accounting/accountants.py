"""Accountants by name, and ε, δ and whole ε curves of composed rounds.

All numbers are upper bounds under the add-or-remove-one-user relation: the privacy loss
distributions (PLDs) are rounded pessimistically, so a coarser discretisation is looser, never
wrong. Every function takes an `Accountant`, its name, or None for the default of the mechanism.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import dp_accounting
from dp_accounting.pld import privacy_loss_distribution

from fedsim.accounting.events import RoundCost, binomial_probabilities
from fedsim.errors import ConfigError


@dataclass(frozen=True)
class Accountant:
    """How rounds are added up.

    Attributes:
        name: what configs and reports call it.
        citation: the method's source, for reports.
        discretisation: width of the grid of privacy losses, in nats; None where there is none.
        relation: the neighbouring relation of its guarantee.
    """

    name: str
    citation: str
    discretisation: float | None
    relation: str = "add-or-remove-one user"


ACCOUNTANTS = {
    "pld": Accountant(
        "pld",
        "PLD of the Poisson-sampled Gaussian: Koskela et al. 2021; connect-the-dots rounding, "
        "Doroshenko et al. 2022; tight by Charles et al. 2024, Theorem 2",
        1e-4,
    ),
    "rdp": Accountant(
        "rdp",
        "Rényi DP of the Poisson-sampled Gaussian: Mironov et al. 2019",
        None,
    ),
    # One build at 1e-4 takes most of a minute and lowers ε by 2e-6 of its value.
    "mixture": Accountant(
        "mixture",
        "PLD of a mixture of Gaussians with Binomial sensitivity: Charles et al. 2024, "
        "Theorems 1 and 3",
        1e-3,
    ),
}

Composition = Sequence[tuple[RoundCost, int]]


def resolve_accountant(accountant: Accountant | str | None, units_per_user: int) -> Accountant:
    """Return the accountant meant by a name, a value or None, for this many units per user.

    None means "pld" for one unit per user and "mixture" for more; there "pld" is accepted as
    another word for "mixture", which is the PLD of that mechanism.

    Raises:
        ConfigError: an unknown name, or an accountant that cannot account the mechanism.
    """
    if accountant is None:
        accountant = "pld" if units_per_user == 1 else "mixture"
    if isinstance(accountant, str):
        if accountant not in ACCOUNTANTS:
            known = ", ".join(sorted(ACCOUNTANTS))
            raise ConfigError(f"accountant = {accountant!r}: unknown; known: {known}")
        accountant = ACCOUNTANTS[accountant]
    if units_per_user > 1 and accountant.name == "pld":
        return ACCOUNTANTS["mixture"]
    if units_per_user > 1 and accountant.name == "rdp":
        raise ConfigError(
            f"accountant = 'rdp': cannot account {units_per_user} units per user; use 'mixture'"
        )
    return accountant


def epsilon(
    cost: RoundCost, rounds: int, delta: float, accountant: Accountant | str | None = None
) -> float:
    """Return the smallest ε the accountant certifies for `rounds` rounds at `delta`.

    | case | result |
    |---|---|
    | no rounds | 0 |
    | noise multiplier 0 | inf |
    | delta below what the accountant resolves (about 1e-15 for a PLD) | inf |

    Raises:
        ConfigError: delta outside (0, 1), negative rounds, or an unsuitable accountant.
    """
    return epsilon_of_composition([(cost, rounds)], delta, accountant)


def delta(
    cost: RoundCost,
    rounds: int,
    epsilon: float,
    accountant: Accountant | str | None = None,
) -> float:
    """Return the smallest δ the accountant certifies for `rounds` rounds at `epsilon` >= 0.

    No rounds cost 0; a noise multiplier of 0 gives 1.

    Raises:
        ConfigError: negative epsilon or rounds, or an unsuitable accountant.
    """
    if not epsilon >= 0.0:
        raise ConfigError(f"epsilon = {epsilon!r}: give a number >= 0")
    chosen = resolve_accountant(accountant, cost.units_per_user)
    parts = _released([(cost, rounds)])
    if not parts:
        return 0.0
    if cost.noise_multiplier == 0.0:
        return 1.0
    if chosen.discretisation is None:
        with _quiet():
            return float(_rdp(parts).get_delta(epsilon))
    return float(_pld(parts, chosen.discretisation).get_delta_for_epsilon(epsilon))


def epsilon_curve(
    cost: RoundCost,
    rounds: Sequence[int],
    delta: float,
    accountant: Accountant | str | None = None,
) -> list[float]:
    """Return `epsilon` at each number of rounds, building the single-round PLD only once."""
    return [epsilon(cost, count, delta, accountant) for count in rounds]


def epsilon_of_composition(
    costs: Composition, delta: float, accountant: Accountant | str | None = None
) -> float:
    """Return ε of rounds that need not cost the same, as pairs of a cost and its count.

    Edge cases and errors as for `epsilon`; the accountant must suit every one of the costs.
    """
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"delta = {delta!r}: give a number in (0, 1)")
    parts = _released(costs)
    units = max((cost.units_per_user for cost, _ in costs), default=1)
    chosen = resolve_accountant(accountant, units)
    if not parts:
        return 0.0
    if any(cost.noise_multiplier == 0.0 for cost, _ in parts):
        return float("inf")
    if chosen.discretisation is None:
        with _quiet():
            return float(_rdp(parts).get_epsilon(delta))
    return float(_pld(parts, chosen.discretisation).get_epsilon_for_delta(delta))


def _released(costs: Composition) -> Composition:
    for _, rounds in costs:
        if rounds < 0:
            raise ConfigError(f"rounds = {rounds!r}: give an integer >= 0")
    return [(cost, rounds) for cost, rounds in costs if rounds > 0]


def _rdp(parts: Composition) -> dp_accounting.PrivacyAccountant:
    accountant = dp_accounting.rdp.RdpAccountant()
    for cost, rounds in parts:
        accountant.compose(cost.composed(rounds))
    return accountant


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the RDP accountant's line per order it leaves out: the bound holds without it."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _pld(
    parts: Composition, discretisation: float
) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Compose as `dp_accounting.pld.PLDAccountant` does, but keep the single rounds."""
    composed = (_single_round(cost, discretisation).self_compose(rounds) for cost, rounds in parts)
    return functools.reduce(lambda left, right: left.compose(right), composed)


@functools.lru_cache(maxsize=2)  # a PLD is megabytes, its building the slow part
def _single_round(
    cost: RoundCost, discretisation: float
) -> privacy_loss_distribution.PrivacyLossDistribution:
    if cost.units_per_user == 1:
        return privacy_loss_distribution.from_gaussian_mechanism(
            cost.noise_multiplier,
            sampling_prob=cost.sampling_probability,
            value_discretization_interval=discretisation,
        )
    return privacy_loss_distribution.from_mixture_gaussian_mechanism(
        cost.noise_multiplier,
        list(range(cost.units_per_user + 1)),
        binomial_probabilities(cost.units_per_user, cost.sampling_probability),
        value_discretization_interval=discretisation,
    )

"""The trade-off curve: bounds on any membership attack on a run's releases.

An attacker decides from all releases whether one user was in the data. Every test with a false
positive rate of α has a false negative rate of at least f(α) (Dong, Roth and Su 2022). The curve f
combines all (ε, δ) pairs,

    f(α) = max over ε >= 0 of 0, 1 - δ(ε) - e^ε α and e^-ε (1 - δ(ε) - α),

so it is at least the bound of any single (ε, δ). An upper bound on δ(ε) gives a lower bound on f.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from fedsim.accounting.accountants import epsilon_of_composition, profile_of_composition
from fedsim.accounting.events import Composition, RoundCost
from fedsim.accounting.rounding import round_up
from fedsim.sampling import Relation

Array = npt.NDArray[np.float64]

RATES = (0.001, 0.01, 0.1)
"""False positive rates that are reported."""

PRIORS = (0.5, 0.01)
"""Prior probabilities that the user was in the data, for the reported posteriors."""

EPSILONS = (1.0, 2.0, 4.0, 8.0)
"""Values of ε at which δ is reported."""

LEAST_RATE = 1e-10
"""μ holds for tests whose error rates are both at least this (Gomez et al. 2025, §4)."""

# Values of ε, each a tangent of the curve; with n values the error of f is about (range / n)² / 20.
_POINTS = 1000
_DELTAS = (1e-12, 1e-10, 1e-8)  # the range of ε ends at the first of these δ with a finite ε
_DRAWN = np.unique(np.concatenate([[0.0], np.geomspace(1e-4, 1.0, 49), np.linspace(0.02, 1.0, 50)]))


@dataclass(frozen=True, eq=False)
class TradeOff:
    """A lower bound on every attacker's errors.

    Attributes:
        epsilons: (n,) ascending, from 0.
        deltas: (n,) upper bounds on δ at each ε, for both directions.

    Examples:
        >>> from fedsim.accounting.events import RoundCost
        >>> from fedsim.sampling import PoissonSampling
        >>> rounds = [(RoundCost(PoissonSampling(0.01), 1.0), 1000)]
        >>> curve = TradeOff.of(rounds, delta=1e-6)
        >>> curve.true_positive_rates(np.array(RATES)).round(4).tolist()
        [0.0041, 0.0291, 0.1942]
    """

    epsilons: Array
    deltas: Array

    @classmethod
    def of(
        cls,
        costs: Composition,
        delta: float,
        accountant: str | None = None,
        relation: Relation | None = None,
    ) -> TradeOff | None:
        """Return the curve of some rounds; None without a finite ε.

        Args:
            costs: pairs of a cost and its count.
            delta: δ of the guarantee; the curve includes its (ε, δ).
            accountant: name of the accountant; None for the mechanism's default.
            relation: neighbouring relation; None for the sampler's default.

        Raises:
            ConfigError: the accountant has no proof for these rounds.
        """
        return _curve(tuple(costs), delta, accountant, relation)

    def false_negative_rates(self, false_positive_rates: Array) -> Array:
        """Return f at each rate, (m,), in [0, 1]."""
        rates = np.asarray(false_positive_rates, np.float64)[:, None]
        growth = np.exp(np.minimum(self.epsilons, 700.0))
        steep = 1.0 - self.deltas - growth * rates
        flat = (1.0 - self.deltas - rates) / growth
        lines: Array = np.maximum(steep, flat)
        upper: Array = lines.max(axis=1)
        return np.maximum(upper, 0.0)

    def true_positive_rates(self, false_positive_rates: Array) -> Array:
        """Return the maximum true positive rate at each rate, (m,): an upper bound on any ROC."""
        return 1.0 - self.false_negative_rates(false_positive_rates)

    @cached_property
    def vertices(self) -> tuple[Array, Array]:
        """Corners of the curve, from (0, 1 - δ): false positive and false negative rates.

        Up to f(α) = α the curve is the maximum of the lines 1 - δ(ε) - e^ε α; then it is mirrored.
        """
        some = self.deltas < 1.0
        if not some.any():  # no guarantee at any ε: the line from (0, 0) to (1, 0)
            return np.array([0.0, 1.0]), np.array([0.0, 0.0])
        starts = 1.0 - self.deltas[some]
        slopes = np.exp(np.minimum(self.epsilons[some], 700.0))
        half = _corners(starts, slopes, float(np.max(starts / (1.0 + slopes))))
        other = self.false_negative_rates(half)
        return np.concatenate([half, other[::-1]]), np.concatenate([other, half[::-1]])

    @property
    def area(self) -> float:
        """Maximum area under a ROC, in [0.5, 1]."""
        positive, negative = self.vertices
        return min(1.0, 1.0 - float(np.trapezoid(negative, positive)))

    @cached_property
    def mu(self) -> float:
        """μ: every test is at most as strong as telling N(0, 1) from N(μ, 1); see `LEAST_RATE`."""
        positive = np.append(self.vertices[0], LEAST_RATE)
        negative = self.false_negative_rates(positive)
        inside = (positive >= LEAST_RATE) & (negative >= LEAST_RATE)
        if not inside.any():
            return math.inf
        each = -special.ndtri(positive[inside]) - special.ndtri(negative[inside])
        return max(0.0, float(each.max()))

    def delta(self, epsilon: float) -> float:
        """Return δ at ε >= 0: that of the largest known ε below it."""
        return float(self.deltas[np.searchsorted(self.epsilons, epsilon, side="right") - 1])

    def to_json(self) -> dict[str, Any]:
        """Return the bounds for the report, and points of the curve for a plot."""
        highest = self.true_positive_rates(np.array(RATES)).tolist()
        return {
            "tests": [
                {
                    "false_positive_rate": rate,
                    "true_positive_rate": most,
                    "posteriors": [posterior(prior, rate, most) for prior in PRIORS],
                }
                for rate, most in zip(RATES, highest, strict=True)
            ],
            "priors": list(PRIORS),
            "auroc": self.area,
            "mu": self.mu if math.isfinite(self.mu) else None,
            "deltas": [{"epsilon": one, "delta": self.delta(one)} for one in EPSILONS],
            "false_positive_rates": _DRAWN.tolist(),
            "true_positive_rates": self.true_positive_rates(_DRAWN).tolist(),
        }


@lru_cache(maxsize=64)  # a run needs the same curve several times, and runs of a sweep share costs
def _curve(
    costs: tuple[tuple[RoundCost, int], ...],
    delta: float,
    accountant: str | None,
    relation: Relation | None,
) -> TradeOff | None:
    promised = epsilon_of_composition(costs, delta, accountant, relation)
    if not math.isfinite(promised):
        return None
    ends = [epsilon_of_composition(costs, one, accountant, relation) for one in _DELTAS]
    end = next((one for one in ends if math.isfinite(one)), promised)
    grid = np.linspace(0.0, max(end, promised), _POINTS)
    epsilons = np.unique(np.concatenate([grid, [promised], EPSILONS]))
    profile = profile_of_composition(costs, delta, accountant, relation)
    deltas = np.minimum(profile(epsilons), 1.0)
    kept = epsilons >= promised  # δ holds here: ε was certified at δ, possibly on another grid
    deltas[kept] = np.minimum(deltas[kept], delta)
    return TradeOff(epsilons, np.minimum.accumulate(deltas))


def _corners(starts: Array, slopes: Array, end: float) -> Array:
    """Return the corners of the maximum of lines start - slope · α, with 0 and `end`.

    Slopes and starts ascend: the steepest line is the largest at 0.
    """
    kept: list[int] = []
    corners = [0.0]  # for each kept line, the α from which it is the largest
    for line in range(len(slopes) - 1, -1, -1):
        while kept:
            last = kept[-1]
            at = (starts[last] - starts[line]) / max(slopes[last] - slopes[line], 1e-300)
            if at > corners[-1] or len(kept) == 1:
                break
            kept.pop()
            corners.pop()
        if kept:
            corners.append(max(float(at), 0.0))
        kept.append(line)
    inside = np.array(corners)
    return np.unique(np.append(inside[inside < end], end))


def posterior(prior: float, false_positive_rate: float, true_positive_rate: float) -> float:
    """Return the probability that a user was in the data if a test with these rates says so."""
    true = prior * true_positive_rate
    return true / (true + (1.0 - prior) * false_positive_rate)


_INSTEAD = {"zero-out": " (zeros were in its place)", "replace": " (another's was in its place)"}
_INSTEAD["fixed-graph"] = _INSTEAD["zero-out"]


def attacker_sentence(
    found: Mapping[str, Any],
    unit: str,
    relation: str,
    *,
    seeded: bool = False,
    hypothetical: bool = False,
) -> str:
    """Return the numbers of `TradeOff.to_json` in words, each rounded up.

    Args:
        found: result of `to_json`; the curve's points are not used.
        unit: the protected party, such as "user".
        relation: value or phrase of the relation.
        seeded: whether ε is simulated.
        hypothetical: whether ε belongs to another mechanism than the run's.
    """
    instead = next((text for name, text in _INSTEAD.items() if relation.startswith(name)), "")
    first, *others = found["tests"]
    weaker = [
        f"at 1 in {_one_in(one)}, at most {_percent(one['true_positive_rate'])}" for one in others
    ]
    sure = [
        f"with a prior belief of {100 * prior:g} % is at most {_percent(after)} sure"
        for prior, after in sorted(zip(found["priors"], first["posteriors"], strict=True))
    ]
    deltas = ", ".join(
        f"{round_up(one['delta'], 2):.2g} at ε = {one['epsilon']:g}" for one in found["deltas"]
    )
    most = _percent(first["true_positive_rate"])
    start = "For an attacker, with secret randomness," if seeded else "For an attacker"
    return (
        f"{'Hypothetical, no guarantee. ' if hypothetical else ''}{start} this means: a test that "
        f"wrongly names 1 in {_one_in(first)} {unit}s whose text was not trained on{instead} "
        f"finds at most {most} of the {unit}s whose text was; {'; '.join(weaker)}. "
        f"If the first test names a person, an attacker {'; one '.join(sure)}. "
        "A test that names fewer people can be surer. "
        f"Under the same terms δ is at most {deltas}."
    )


def gaussian_text(found: Mapping[str, Any]) -> str | None:
    """Return μ of `TradeOff.to_json` in words, rounded up; None if it is infinite."""
    if found["mu"] is None:
        return None
    return (
        f"nearly as strong as {round_up(found['mu'], 4):g}-GDP "
        "(docs/accounting.md#what-an-attacker-can-achieve)"
    )


def attacker_text(content: Mapping[str, Any]) -> str | None:
    """Return the attacker sentence of a privacy.json's content; None without a trade-off."""
    if content["trade_off"] is None:
        return None
    return attacker_sentence(
        content["trade_off"],
        content["unit"],
        content["relation"],
        seeded=content["noise"] == "seeded",
        hypothetical=content["hypothetical"],
    )


def _one_in(test: Mapping[str, Any]) -> str:
    return f"{1.0 / test['false_positive_rate']:,.0f}"


def _percent(share: float) -> str:
    return f"{min(round_up(100.0 * share, 3), 100.0):g} %"

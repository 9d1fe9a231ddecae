"""The trade-off curve: what any attacker can make of a run's releases.

An attacker decides from everything that was released whether one user was in the data. Whichever
test they use, its false negative rate is at least f(α) at a false positive rate of α (Dong, Roth
and Su 2022). The curve f is that of all (ε, δ) pairs at once,

    f(α) = max over ε >= 0 of 0, 1 - δ(ε) - e^ε α and e^-ε (1 - δ(ε) - α),

so it lies above what any one (ε, δ) says, and an upper bound on δ(ε) gives a lower bound on f.
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
"""How likely the attacker holds it beforehand that the user was in, where a posterior is given."""

EPSILONS = (1.0, 2.0, 4.0, 8.0)
"""Where δ is reported."""

LEAST_RATE = 1e-10
"""μ holds for tests of which neither rate of errors is below this (Gomez et al. 2025, §4)."""

_POINTS = (
    1000  # of ε: tangents of the curve; with n of them f is off by some (range of ε / n)² / 20
)
_DELTAS = (1e-12, 1e-10, 1e-8)  # where the range of ε may end
_DRAWN = np.unique(np.concatenate([[0.0], np.geomspace(1e-4, 1.0, 49), np.linspace(0.02, 1.0, 50)]))


@dataclass(frozen=True, eq=False)
class TradeOff:
    """A lower bound on every attacker's errors.

    Attributes:
        epsilons: (n,) ascending, from 0.
        deltas: (n,) upper bounds on δ at each, in both directions.

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
        """Return the curve of some rounds; None where the accountant knows none, as without noise.

        Args:
            costs: pairs of a cost and its count.
            delta: of the promise, whose (ε, δ) is one of those that make the curve.
            accountant: a name, or None for the mechanism's own.
            relation: None for the sampler's own.

        Raises:
            ConfigError: what the accountant cannot prove.
        """
        return _curve(tuple(costs), delta, accountant, relation)

    def false_negative_rates(self, false_positive_rates: Array) -> Array:
        """Return f at each rate, (m,), in [0, 1]."""
        rates = np.asarray(false_positive_rates, np.float64)[:, None]
        growth = np.exp(np.minimum(self.epsilons, 700.0))
        steep = 1.0 - self.deltas - growth * rates
        flat = (1.0 - self.deltas - rates) / growth
        lines: Array = np.maximum(steep, flat)
        most: Array = lines.max(axis=1)
        return np.maximum(most, 0.0)

    def true_positive_rates(self, false_positive_rates: Array) -> Array:
        """Return the most that a test can find at each rate, (m,): the bound on a ROC."""
        return 1.0 - self.false_negative_rates(false_positive_rates)

    @cached_property
    def vertices(self) -> tuple[Array, Array]:
        """The corners of the curve from (0, 1 - δ) on: false positive and false negative rates.

        Up to f(α) = α it is the largest of the lines 1 - δ(ε) - e^ε α; then it is mirrored.
        """
        some = self.deltas < 1.0
        if not some.any():  # nothing is promised at any ε: the line from (0, 0) to (1, 0)
            return np.array([0.0, 1.0]), np.array([0.0, 0.0])
        starts = 1.0 - self.deltas[some]
        slopes = np.exp(np.minimum(self.epsilons[some], 700.0))
        half = _corners(starts, slopes, float(np.max(starts / (1.0 + slopes))))
        other = self.false_negative_rates(half)
        return np.concatenate([half, other[::-1]]), np.concatenate([other, half[::-1]])

    @property
    def area(self) -> float:
        """The most that the area under a ROC can be, in [0.5, 1]."""
        positive, negative = self.vertices
        return min(1.0, 1.0 - float(np.trapezoid(negative, positive)))

    @cached_property
    def mu(self) -> float:
        """μ: no test does better than one that tells N(0, 1) from N(μ, 1); see `LEAST_RATE`."""
        positive = np.append(self.vertices[0], LEAST_RATE)
        negative = self.false_negative_rates(positive)
        inside = (positive >= LEAST_RATE) & (negative >= LEAST_RATE)
        if not inside.any():
            return math.inf
        each = -special.ndtri(positive[inside]) - special.ndtri(negative[inside])
        return max(0.0, float(each.max()))

    def delta(self, epsilon: float) -> float:
        """Return δ at ε >= 0, by the nearest ε below that is known."""
        return float(self.deltas[np.searchsorted(self.epsilons, epsilon, side="right") - 1])

    def to_json(self) -> dict[str, Any]:
        """Return what is reported: upper bounds, and the curve at rates that a picture needs."""
        found = self.true_positive_rates(np.array(RATES)).tolist()
        return {
            "tests": [
                {
                    "false_positive_rate": rate,
                    "true_positive_rate": most,
                    "posteriors": [posterior(prior, rate, most) for prior in PRIORS],
                }
                for rate, most in zip(RATES, found, strict=True)
            ],
            "priors": list(PRIORS),
            "auroc": self.area,
            "mu": self.mu if math.isfinite(self.mu) else None,
            "deltas": [{"epsilon": one, "delta": self.delta(one)} for one in EPSILONS],
            "false_positive_rates": _DRAWN.tolist(),
            "true_positive_rates": self.true_positive_rates(_DRAWN).tolist(),
        }


@lru_cache(maxsize=64)  # runs of a sweep share their costs, and a run asks more than once
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
    kept = epsilons >= promised  # by ε's own search, whose grid may be another
    deltas[kept] = np.minimum(deltas[kept], delta)
    return TradeOff(epsilons, np.minimum.accumulate(deltas))


def _corners(starts: Array, slopes: Array, end: float) -> Array:
    """Return where the largest of lines start - slope · α has corners, 0 and `end` among them.

    Slopes ascend, and with them the starts: the steepest line is the largest at 0.
    """
    kept: list[int] = []
    corners = [0.0]  # before each kept line, where it begins to be the largest
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
    """Return how likely it is that a user was in whom a test with these rates calls in."""
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
        found: what `to_json` returned; the curve's points are not looked at.
        unit: whose guarantee it is.
        relation: its value, or its words.
        seeded: whether ε is simulated.
        hypothetical: whether the ε is of another mechanism than the one that ran.
    """
    instead = next((text for name, text in _INSTEAD.items() if relation.startswith(name)), "")
    first, *others = found["tests"]
    named = [
        f"1 in {_one_in(one)}, at most {_percent(one['true_positive_rate'])}" for one in others
    ]
    sure = [
        f"who held it for {100 * prior:g} % likely before is at most {_percent(after)} sure"
        for prior, after in sorted(zip(found["priors"], first["posteriors"], strict=True))
    ]
    deltas = ", ".join(
        f"{round_up(one['delta'], 2):.2g} at ε = {one['epsilon']:g}" for one in found["deltas"]
    )
    most = _percent(first["true_positive_rate"])
    whom = "For an attacker, with secret randomness," if seeded else "For an attacker"
    return (
        f"{'Hypothetical, no guarantee. ' if hypothetical else ''}{whom} this means: a test that "
        f"wrongly names 1 in {_one_in(first)} {unit}s whose text was not trained on{instead} "
        f"finds at most {most} of those whose text was; one that wrongly names "
        f"{'; about '.join(named)}. If the first test names somebody, an attacker "
        f"{', one '.join(sure)}; a test that names fewer people can be surer. "
        f"Under the same terms δ is at most {deltas}."
    )


def gaussian_text(found: Mapping[str, Any]) -> str | None:
    """Return μ of `TradeOff.to_json` in words, rounded up; None where it is infinite."""
    if found["mu"] is None:
        return None
    return (
        f"nearly as strong as {round_up(found['mu'], 4):g}-GDP "
        "(docs/accounting.md#what-an-attacker-can-achieve)"
    )


def attacker_text(content: Mapping[str, Any]) -> str | None:
    """Return what a promise says of an attacker; None where it says nothing."""
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

"""PrivacyTerms: an ε with δ, unit, relation, sampler, accountant and noise source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedsim.accounting.accountants import choose
from fedsim.accounting.events import Composition, RoundCost
from fedsim.accounting.rounding import text_up
from fedsim.sampling import PoissonSampling, Relation, rounds_text

Noise = Literal["secure", "seeded"]

_SOURCE: Mapping[Noise | None, str] = {
    "secure": "Coins and noise are secret.",
    "seeded": "The draws of this run follow from its seed, so it protects nobody.",
    None: "It requires coins and noise that stay secret.",
}

HYPOTHETICAL = "hypothetical, not a guarantee: "
"""Start of the caption of an ε that belongs to another mechanism than the run's."""


def noise_terms(noise: Noise) -> str:
    """Return the words on randomness for a caption."""
    return "secret noise" if noise == "secure" else "the draws follow from a seed"


@dataclass(frozen=True)
class PrivacyTerms:
    """An ε with all terms that a privacy statement needs, in words and as JSON.

    Attributes:
        epsilon: inf if no ε is certified.
        delta: None for a run without a guarantee.
        relation: the neighbouring relation, in words.
        sampler: the sampling method and its unit, in words.
        sampling_probability: probability of one unit in one round.
        chance: the probability in words; "" for `sampling_probability`.
        noise_multiplier: noise multiplier of a round.
        rounds: number of noisy releases that ε covers.
        runs: the number of runs in words, if each run has one price; "" for one run.
        units_per_user: maximum number of sampled units of one user.
        accountant: name of the accountant.
        guaranteed: whether the accounted sampler is the one that drew the cohorts.
        noise: "secure" or "seeded"; None before any draw.
        unit: the protected party, such as "user".
        others: rounds with another cost, as pairs of a count and a mechanism in words; `rounds`
            includes them.
    """

    epsilon: float
    delta: float | None
    relation: str
    sampler: str
    sampling_probability: float
    noise_multiplier: float
    rounds: int
    units_per_user: int
    accountant: str
    guaranteed: bool = True
    noise: Noise | None = None
    unit: str = "user"
    chance: str = ""
    runs: str = ""
    others: tuple[tuple[int, str], ...] = ()

    @classmethod
    def of(
        cls,
        cost: RoundCost,
        noun: str,
        *,
        rounds: int,
        delta: float | None,
        epsilon: float = math.inf,
        accountant: str | None = None,
        relation: Relation | None = None,
        noise: Noise | None = None,
        unit: str | None = None,
        others: Composition = (),
    ) -> PrivacyTerms:
        """Return the terms of an ε of `rounds` rounds.

        Args:
            cost: cost of a round.
            noun: "users" or "examples", the unit of sampling.
            rounds: number of rounds, including `others`.
            delta: see the attributes.
            epsilon: see the attributes.
            accountant: name of the accountant; None for the mechanism's default.
            relation: neighbouring relation; None for the sampler's default.
            noise: see the attributes.
            unit: the protected party; None for that of the relation.
            others: pairs of another cost and its number of rounds.

        Raises:
            ConfigError: the accountant has no proof for these rounds.
        """
        chosen, meant = choose([cost, *(other for other, _ in others)], accountant, relation)
        own = rounds - sum(count for _, count in others)
        return cls(
            epsilon=epsilon,
            delta=delta,
            relation=meant.phrase,
            sampler=_sampler(cost, noun),
            sampling_probability=cost.sampling.probability,
            noise_multiplier=cost.noise_multiplier,
            rounds=rounds,
            units_per_user=cost.units_per_user,
            accountant=chosen.name,
            guaranteed=all(c.sampling.guaranteed for c in (cost, *(c for c, _ in others))),
            noise=noise,
            unit=unit or meant.unit,
            chance=cost.sampling.chance_in_words(noun),
            runs=_runs(cost, own),
            others=tuple((count, mechanism_text(other, noun, count)) for other, count in others),
        )

    def sentence(self) -> str:
        """Return ε, rounded up, with all its terms, as a sentence.

        It starts with "Simulated" for a seeded run, and with "Hypothetical" if the accounted
        sampler is not the one that drew the cohorts.
        """
        if self.delta is not None and self.noise_multiplier > 0.0 and math.isinf(self.epsilon):
            return (
                f"No privacy guarantee: the {self.accountant} accountant certifies no finite ε at "
                f"δ = {text_up(self.delta)} for {rounds_text(self.rounds)} of {self.sampler} with "
                f"noise multiplier {self.noise_multiplier:g}; a larger δ may have one."
            )
        if self.delta is None or math.isinf(self.epsilon):
            rounds = rounds_text(self.rounds)
            return f"No privacy guarantee: the releases of {rounds} have no finite ε."
        several = self.units_per_user > 1
        article = "an" if self.unit.startswith("o") else "a"
        share = f" (at most {self.units_per_user} {article} {self.unit})" if several else ""
        if not self.guaranteed:
            begins = f"Hypothetical, not a guarantee for this run: every {self.unit} would have"
        elif self.noise == "seeded":
            begins = f"Simulated: with secret randomness this mechanism gives every {self.unit}"
        else:
            begins = f"Every {self.unit} has"
        chance = self.chance or f" with probability {self.sampling_probability:g}"
        own = self.rounds - sum(count for count, _ in self.others)
        beside = "".join(f", and {count} {what}" for count, what in self.others)
        return (
            f"{begins} (ε = {text_up(self.epsilon, 4)}, δ = {text_up(self.delta)})-differential "
            f"privacy under the {self.relation} relation, for {rounds_text(own)}{self.runs} of "
            f"{self.sampler}{share}{chance} and noise multiplier {self.noise_multiplier:g}{beside},"
            f" by the {self.accountant} accountant. {_SOURCE[self.noise]}"
        )

    def caption(self) -> str:
        """Return the terms of ε in short, to stand beside a number in a log or a plot."""
        simulated = "simulated: " if self.noise == "seeded" else ""
        begins = simulated if self.guaranteed else HYPOTHETICAL
        delta = "none" if self.delta is None else text_up(self.delta)
        drawn = "" if self.noise is None else f", {noise_terms(self.noise)}"
        beside = "".join(f" and {count} {what}" for count, what in self.others)
        return (
            f"{begins}δ = {delta}, for one {self.unit}, {self.relation}, "
            f"{self.sampler}{beside}, {self.accountant} accountant{drawn}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the terms of ε (δ, unit, relation, mechanism, accountant) as JSON values."""
        return {
            "delta": self.delta,
            "unit": self.unit,
            "relation": self.relation,
            "noise_multiplier": self.noise_multiplier,
            "sampling_probability": self.sampling_probability,
            "sampler": self.sampler + (" (others too: see the statement)" if self.others else ""),
            "rounds": self.rounds,
            "units_per_user": self.units_per_user,
            "accountant": self.accountant,
        }


def _sampler(cost: RoundCost, noun: str) -> str:
    searched = "" if cost.search is None else f" in {cost.search.in_words()}"
    return f"{cost.sampling.in_words(noun)}{searched}"


def _runs(cost: RoundCost, rounds: int) -> str:
    """Return the number of runs in words, if there are several runs and each has one price."""
    if cost.run_rounds is None or (runs := cost.runs(rounds)) < 2:
        return ""
    return f" ({runs} {'runs' if cost.search is None else 'searches'} of {cost.run_rounds})"


def mechanism_text(cost: RoundCost, noun: str, count: int) -> str:
    """Return the mechanism of `count` rounds of a cost, in words."""
    plural, runs = "" if count == 1 else "s", _runs(cost, count)
    if cost.sampling == PoissonSampling(1.0) and cost.units_per_user == 1:
        return f"sum{plural} over all users with noise multiplier {cost.noise_multiplier:g}"
    return (
        f"round{plural}{runs} of {cost.sampling.in_words(noun)}"
        f"{cost.sampling.chance_in_words(noun)} and noise multiplier {cost.noise_multiplier:g}"
        + (f" (at most {cost.units_per_user} a user)" if cost.units_per_user > 1 else "")
    )


def finite_or_none(value: float) -> float | None:
    """Return the value; None if it is infinite or NaN, which JSON cannot write."""
    return value if math.isfinite(value) else None

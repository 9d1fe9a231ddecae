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
    None: "It takes coins and noise that stay secret.",
}

HYPOTHETICAL = "hypothetical, not a guarantee: "
"""What the caption of an ε begins with that is of another mechanism than was run."""


def noise_sentence(noise: Noise | None) -> str:
    """Return the last sentence of a statement: on its randomness; None: not yet drawn.

    Examples:
        >>> noise_sentence("secure")
        'Coins and noise are secret.'
    """
    return _SOURCE[noise]


def noise_terms(noise: Noise) -> str:
    """Return the same as part of a caption."""
    return "secret noise" if noise == "secure" else "the draws follow from a seed"


@dataclass(frozen=True)
class PrivacyTerms:
    """An ε and everything that it must be said with; it prints itself.

    Attributes:
        epsilon: inf where none is certified.
        delta: None where no guarantee was asked for.
        relation: the neighbouring relation, in words.
        sampler: what was sampled and how, in words.
        sampling_probability: of one unit in one round.
        chance: the probability in words; "" for `sampling_probability`.
        noise_multiplier: of a round.
        rounds: noisy releases that ε is of.
        runs: the runs that the rounds are of, in words, where each has one price; "" for one run.
        units_per_user: the most sampled units that one user owns.
        accountant: its name.
        guaranteed: whether the sampler that is accounted is the one that drew.
        noise: "secure" or "seeded"; None where nothing is drawn yet.
        unit: whose guarantee it is.
        others: rounds that cost something else, as pairs of how many and of what; they are among
            `rounds`.
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
        """Return the terms of an ε of `rounds` rounds, as a rule of one cost.

        Args:
            cost: of a round.
            noun: what is sampled: "users" or "examples".
            rounds: how many.
            delta: as in the attributes.
            epsilon: as in the attributes.
            accountant: a name; None for the mechanism's own.
            relation: None for the sampler's own.
            noise: as in the attributes.
            unit: None for that of the relation.
            others: other costs among those rounds, with the number of each.

        Raises:
            ConfigError: what the accountant cannot prove.
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
        """Return ε, rounded up, and all it rests on, as a sentence.

        It begins with "Simulated" for a seeded run, and with "Hypothetical" if the sampler that is
        accounted is not the one that drew.
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
            f" by the {self.accountant} accountant. {noise_sentence(self.noise)}"
        )

    def caption(self) -> str:
        """Return what an ε that stands by itself is of: beside a number in a log or a plot."""
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
        """Return δ, unit, relation, mechanism, rounds and accountant: ε's terms as JSON values."""
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
    """Return the runs that rounds are of, in words, if there are several and each has one price."""
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
    """Return the value, or None in place of what JSON cannot write."""
    return value if math.isfinite(value) else None

"""What `fedsim account` was asked and what it answers, in words, as JSON and as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from fedsim.accounting.accountants import choose
from fedsim.accounting.accountants import epsilon as epsilon_of
from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.accounting.events import RoundCost
from fedsim.accounting.rounding import text_up
from fedsim.accounting.statement import PrivacyTerms, finite_or_none, noise_sentence
from fedsim.accounting.trade_off import TradeOff
from fedsim.errors import ConfigError, about
from fedsim.sampling import Relation, Sampling, rounds_text
from fedsim.utils.cache import remembered
from fedsim.utils.terminal import table_of


@dataclass(frozen=True)
class Question:
    """What was asked, but for ε and δ.

    Attributes:
        rounds: how many.
        sampling: the law.
        noun: what it draws.
        units_per_user: 1 in ULS, the group size in ELS.
        noise_multiplier: given, or None where a target ε is.
        accountant: a name, or None for the mechanism's own.
        relation: the neighbouring relation, or None for the sampler's own.
    """

    rounds: int
    sampling: Sampling
    noun: str
    units_per_user: int
    noise_multiplier: float | None
    accountant: str | None
    relation: Relation | None

    def check(self, targets: Sequence[float | None]) -> None:
        """Raise `ConfigError` unless there is exactly one of noise and targets, all in range."""
        if self.rounds < 1:
            raise ConfigError(f"--rounds = {self.rounds}: give an integer >= 1")
        noise = self.noise_multiplier
        if (noise is None) == (targets[0] is None):
            raise ConfigError(
                f"--noise-multiplier = {noise}, --epsilon = {targets[0]}: give one of the two; "
                "it decides the other"
            )
        if noise is not None and not 0.0 <= noise < math.inf:
            raise ConfigError(f"--noise-multiplier = {noise}: give a finite number >= 0")
        for target in targets:
            if target is not None and not 0.0 < target < math.inf:
                raise ConfigError(f"--epsilon = {target}: give a finite number > 0")
        if self.relation is Relation.FIXED_GRAPH and self.noun == "users":
            raise ConfigError(
                f"--relation = {self.relation.value!r}: has no proved price where users are "
                "sampled; ask for `fedsim account els`"
            )


@dataclass(frozen=True)
class Answer:
    """A question with the cost of its noise, and its ε with all that it is said with."""

    question: Question
    cost: RoundCost
    relation: Relation
    delta: float
    terms: PrivacyTerms

    @property
    def diverges(self) -> bool:
        """Whether black-box group privacy has no answer although there is noise."""
        return (
            self.terms.accountant == "group-privacy"
            and math.isinf(self.terms.epsilon)
            and self.cost.noise_multiplier > 0.0
        )

    def point(self) -> dict[str, float | None]:
        """Return ε, δ and the noise multiplier; an infinite ε is null."""
        return {
            "epsilon": finite_or_none(self.terms.epsilon),
            "delta": self.delta,
            "noise_multiplier": self.cost.noise_multiplier,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {**self.point(), **self.facts(), "diverges": self.diverges}

    def facts(self) -> dict[str, Any]:
        """Return as JSON values what several answers have in common."""
        terms = self.terms
        return {
            "sampling_probability": terms.sampling_probability,
            "rounds": terms.rounds,
            "accountant": terms.accountant,
            "relation": terms.relation,
            "unit": terms.unit,
            "sampler": terms.sampler,
            "group_size": terms.units_per_user if self.question.noun == "examples" else None,
            "guaranteed": terms.guaranteed,
            "secrecy": noise_sentence(None) if math.isfinite(terms.epsilon) else None,
        }

    def trade_off(self) -> TradeOff | None:
        """Return what an attacker can make of it; None without a finite ε."""
        rounds = [(self.cost, self.terms.rounds)]
        return TradeOff.of(rounds, self.delta, self.terms.accountant, self.relation)

    def sentence(self) -> str:
        """Return the same in words."""
        terms = self.terms
        if self.diverges:
            return (
                f"No finite ε: black-box group privacy diverges for {terms.units_per_user} "
                f"{self.question.noun} of one {terms.unit} at δ = {text_up(self.delta)} "
                f"under the {terms.relation} relation ({rounds_text(terms.rounds)} of "
                f"{terms.sampler} with probability {terms.sampling_probability:g}, noise "
                f"multiplier {terms.noise_multiplier:g}): no δ for one example that the PLD "
                "resolves is small enough. --accountant mixture has an answer."
            )
        return terms.sentence()


def answer(question: Question, target: float | None, delta: float) -> Answer:
    """Return ε of the question's noise, or noise and ε for a target; both remembered on disk.

    Raises:
        ConfigError: what the accountant cannot prove or reach.
    """
    with about(""):
        unit_noise = RoundCost(question.sampling, 1.0, question.units_per_user)
    accountant, relation = choose([unit_noise], question.accountant, question.relation)
    noise = question.noise_multiplier or 0.0
    if target is not None:
        noise = calibrate_noise_multiplier(
            sampling=question.sampling,
            units_per_user=question.units_per_user,
            rounds=question.rounds,
            epsilon=target,
            delta=delta,
            accountant=accountant.name,
            relation=relation,
        )
    cost = RoundCost(question.sampling, noise, question.units_per_user)
    inputs = {
        "round": cost.to_json(),
        "rounds": question.rounds,
        "delta": delta,
        "accountant": accountant.name,
        "relation": relation.value,
    }
    spent = remembered(
        "epsilon",
        inputs,
        lambda: epsilon_of(cost, question.rounds, delta, accountant.name, relation),
        lambda value: value >= 0.0,  # infinite where nothing is promised; never NaN
    )
    terms = PrivacyTerms.of(
        cost,
        question.noun,
        rounds=question.rounds,
        delta=delta,
        epsilon=spent,
        accountant=accountant.name,
        relation=relation,
    )
    return Answer(question, cost, relation, delta, terms)


def curve_json(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return one object for several answers: the common terms, and ε, δ and noise as lists."""
    points = [one.point() for one in answers]
    lists = {key: [point[key] for point in points] for key in points[0]}
    first = next((one for one in answers if math.isfinite(one.terms.epsilon)), answers[0])
    return {**lists, **first.facts(), "curve": points}


def curve_table(answers: Sequence[Answer]) -> Table:
    """Return a table of ε, δ and noise multipliers, with what they are an ε of as its title."""
    terms = answers[0].terms
    several = terms.units_per_user > 1
    share = f", at most {terms.units_per_user} of one {terms.unit}" if several else ""
    label = "" if terms.guaranteed else "HYPOTHETICAL, no guarantee for a run: "
    table = table_of(
        f"{label}one {terms.unit}, {terms.relation}; "
        f"{rounds_text(terms.rounds)} of {terms.sampler}{share}, probability "
        f"{terms.sampling_probability:g}; {terms.accountant} accountant; "
        "an ε takes coins and noise that stay secret",
        ("ε", "δ", "noise multiplier"),
    )
    for one in answers:
        infinite = "diverges" if one.diverges else "no finite ε"
        spent = one.terms.epsilon
        epsilon = text_up(spent, 4) if math.isfinite(spent) else infinite
        table.add_row(epsilon, text_up(one.delta), f"{one.cost.noise_multiplier:g}")
    return table

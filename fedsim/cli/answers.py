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
    """A question with its noise multiplier and its (ε, δ)."""

    question: Question
    accountant: str
    relation: Relation
    noise_multiplier: float
    epsilon: float
    delta: float

    @property
    def diverges(self) -> bool:
        """Whether black-box group privacy has no answer although there is noise."""
        return (
            self.accountant == "group-privacy"
            and math.isinf(self.epsilon)
            and self.noise_multiplier > 0.0
        )

    def point(self) -> dict[str, float | None]:
        """Return ε, δ and the noise multiplier; an infinite ε is null."""
        return {
            "epsilon": finite_or_none(self.epsilon),
            "delta": self.delta,
            "noise_multiplier": self.noise_multiplier,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {**self.point(), **self._terms(), "diverges": self.diverges}

    def trade_off(self) -> TradeOff | None:
        """Return what an attacker can make of it; None without a finite ε."""
        question = self.question
        cost = RoundCost(question.sampling, self.noise_multiplier, question.units_per_user)
        return TradeOff.of([(cost, question.rounds)], self.delta, self.accountant, self.relation)

    def sentence(self) -> str:
        """Return the same in words."""
        question = self.question
        if self.diverges:
            return (
                f"No finite ε: black-box group privacy diverges for {question.units_per_user} "
                f"{question.noun} of one {self.relation.unit} at δ = {text_up(self.delta)} under "
                f"the {self.relation.phrase} relation ({rounds_text(question.rounds)} of "
                f"{self._sampler} with probability {question.sampling.probability:g}, noise "
                f"multiplier {self.noise_multiplier:g}): no δ for one example that the PLD "
                "resolves is small enough. --accountant mixture has an answer."
            )
        return PrivacyTerms(
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation.phrase,
            sampler=self._sampler,
            sampling_probability=question.sampling.probability,
            noise_multiplier=self.noise_multiplier,
            rounds=question.rounds,
            units_per_user=question.units_per_user,
            accountant=self.accountant,
            guaranteed=question.sampling.guaranteed,
            unit=self.relation.unit,
        ).sentence()

    @property
    def _sampler(self) -> str:
        return self.question.sampling.in_words(self.question.noun)

    def _terms(self) -> dict[str, Any]:
        question = self.question
        return {
            "sampling_probability": question.sampling.probability,
            "rounds": question.rounds,
            "accountant": self.accountant,
            "relation": self.relation.phrase,
            "unit": self.relation.unit,
            "sampler": self._sampler,
            "group_size": question.units_per_user if question.noun == "examples" else None,
            "guaranteed": question.sampling.guaranteed,
            "secrecy": noise_sentence(None) if math.isfinite(self.epsilon) else None,
        }


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
    return Answer(question, accountant.name, relation, noise, spent, delta)


def curve_json(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return one object for several answers: the common terms, and ε, δ and noise as lists."""
    points = [one.point() for one in answers]
    lists = {key: [point[key] for point in points] for key in points[0]}
    first = next((one for one in answers if math.isfinite(one.epsilon)), answers[0])
    return {**lists, **first._terms(), "curve": points}


def curve_table(answers: Sequence[Answer]) -> Table:
    """Return a table of ε, δ and noise multipliers, with what they are an ε of as its title."""
    first = answers[0]
    question = first.question
    several = question.units_per_user > 1
    share = f", at most {question.units_per_user} of one {first.relation.unit}" if several else ""
    label = "" if question.sampling.guaranteed else "HYPOTHETICAL, no guarantee for a run: "
    table = table_of(
        f"{label}one {first.relation.unit}, {first.relation.phrase}; "
        f"{rounds_text(question.rounds)} of {first._sampler}{share}, probability "
        f"{question.sampling.probability:g}; {first.accountant} accountant; "
        "an ε takes coins and noise that stay secret",
        ("ε", "δ", "noise multiplier"),
    )
    for one in answers:
        infinite = "diverges" if one.diverges else "no finite ε"
        epsilon = text_up(one.epsilon, 4) if math.isfinite(one.epsilon) else infinite
        table.add_row(epsilon, text_up(one.delta), f"{one.noise_multiplier:g}")
    return table

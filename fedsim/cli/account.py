"""`fedsim account`: ε from noise, or noise from ε, without running anything."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console

from fedsim.accounting.accountants import Accountant, resolve_accountant
from fedsim.accounting.accountants import epsilon as epsilon_of
from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.accounting.events import RoundCost
from fedsim.accounting.statement import finite_or_none, privacy_sentence
from fedsim.errors import ConfigError

app = typer.Typer(
    no_args_is_help=True, help="What a run costs in privacy, or what noise a budget asks for."
)

Rounds = Annotated[int, typer.Option(help="Number of rounds (noisy releases).")]
NoiseMultiplier = Annotated[
    float | None, typer.Option(help="Noise standard deviation over the sensitivity to one unit.")
]
Epsilon = Annotated[float | None, typer.Option(help="Target ε; the noise is found for it.")]
Delta = Annotated[float, typer.Option(help="δ of the guarantee, below 1 / number of users.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@dataclass(frozen=True)
class _Question:
    """What was asked, options checked by `_answer`."""

    rounds: int
    sampling_probability: float
    group_size: int | None
    noise_multiplier: float | None
    epsilon: float | None
    delta: float
    accountant: str
    sampler: str


@dataclass(frozen=True)
class _Answer:
    """A question with its noise multiplier and its ε."""

    question: _Question
    accountant: Accountant
    noise_multiplier: float
    epsilon: float

    def to_json(self) -> dict[str, object]:
        """Return the object that `--json` prints; an infinite ε is null."""
        return {
            "epsilon": finite_or_none(self.epsilon),
            "delta": self.question.delta,
            "noise_multiplier": self.noise_multiplier,
            "sampling_probability": self.question.sampling_probability,
            "rounds": self.question.rounds,
            "accountant": self.accountant.name,
            "relation": self.accountant.relation,
            "unit": "user",
            "sampler": self.question.sampler,
            "group_size": self.question.group_size,
        }

    def sentence(self) -> str:
        """Return the same in words."""
        return privacy_sentence(
            unit="user",
            relation=self.accountant.relation,
            epsilon=self.epsilon,
            delta=self.question.delta,
            noise_multiplier=self.noise_multiplier,
            sampling_probability=self.question.sampling_probability,
            sampler=self.question.sampler,
            rounds=self.question.rounds,
            units_per_user=self.question.group_size or 1,
            accountant=self.accountant.name,
        )


@app.command()
def uls(
    *,
    rounds: Rounds,
    delta: Delta,
    sampling_probability: Annotated[
        float | None, typer.Option(help="Probability of a user's coin in a round.")
    ] = None,
    users: Annotated[int | None, typer.Option(help="Number of users, a public value.")] = None,
    cohort_size: Annotated[float | None, typer.Option(help="Expected users a round.")] = None,
    noise_multiplier: NoiseMultiplier = None,
    epsilon: Epsilon = None,
    accountant: Annotated[str, typer.Option(help="pld or rdp.")] = "pld",
    as_json: Json = False,
) -> None:
    """User-level sampling: each round every user is drawn by a coin of their own."""
    probability = _user_probability(sampling_probability, users, cohort_size)
    question = _Question(
        rounds,
        probability,
        None,
        noise_multiplier,
        epsilon,
        delta,
        accountant,
        "Poisson sampling of users",
    )
    _print(_answer(question), as_json)


@app.command()
def els(
    *,
    rounds: Rounds,
    group_size: Annotated[int, typer.Option(help="Examples a user contributes at most.")],
    sampling_probability: Annotated[
        float, typer.Option(help="Probability of an example's coin in a round.")
    ],
    delta: Delta,
    noise_multiplier: NoiseMultiplier = None,
    epsilon: Epsilon = None,
    accountant: Annotated[str, typer.Option(help="mixture.")] = "mixture",
    as_json: Json = False,
) -> None:
    """Example-level sampling of capped examples, accounted at user level."""
    if group_size < 1:
        raise ConfigError(f"--group-size = {group_size}: give an integer >= 1")
    _check_probability(sampling_probability)
    question = _Question(
        rounds,
        sampling_probability,
        group_size,
        noise_multiplier,
        epsilon,
        delta,
        accountant,
        "Poisson sampling of examples",
    )
    _print(_answer(question), as_json)


def _user_probability(
    probability: float | None, users: int | None, cohort_size: float | None
) -> float:
    """Return q, given itself or as cohort over users."""
    if probability is not None:
        if users is not None or cohort_size is not None:
            raise ConfigError(
                f"--sampling-probability = {probability} together with --users or "
                "--cohort-size: give the probability, or the other two"
            )
        _check_probability(probability)
        return probability
    if users is None or cohort_size is None:
        raise ConfigError(
            f"--users = {users}, --cohort-size = {cohort_size}: give both, or "
            "--sampling-probability"
        )
    if users < 1:
        raise ConfigError(f"--users = {users}: give an integer >= 1")
    if not 0.0 < cohort_size <= users:
        raise ConfigError(
            f"--cohort-size = {cohort_size:g}: give a number above 0, at most --users = {users}"
        )
    return cohort_size / users


def _check_probability(probability: float) -> None:
    if not 0.0 < probability <= 1.0:
        raise ConfigError(f"--sampling-probability = {probability}: give a number in (0, 1]")


def _check(question: _Question) -> None:
    if question.rounds < 1:
        raise ConfigError(f"--rounds = {question.rounds}: give an integer >= 1")
    if not 0.0 < question.delta < 1.0:
        raise ConfigError(f"--delta = {question.delta}: give a number in (0, 1)")
    noise, target = question.noise_multiplier, question.epsilon
    if (noise is None) == (target is None):
        raise ConfigError(
            f"--noise-multiplier = {noise}, --epsilon = {target}: give one of the two; "
            "it decides the other"
        )
    if noise is not None and not 0.0 <= noise < float("inf"):
        raise ConfigError(f"--noise-multiplier = {noise}: give a finite number >= 0")
    if target is not None and not 0.0 < target < float("inf"):
        raise ConfigError(f"--epsilon = {target}: give a finite number > 0")


def _answer(question: _Question) -> _Answer:
    """Check the options and compute what was asked for."""
    _check(question)
    units = question.group_size or 1
    accountant = resolve_accountant(question.accountant, units)
    with _status_when_slow("accounting"):
        noise = _noise_multiplier(question, accountant)
        cost = RoundCost(question.sampling_probability, noise, units)
        spent = epsilon_of(cost, question.rounds, question.delta, accountant)
    return _Answer(question, accountant, noise, spent)


def _noise_multiplier(question: _Question, accountant: Accountant) -> float:
    if question.epsilon is None:
        return question.noise_multiplier or 0.0
    return calibrate_noise_multiplier(
        sampling_probability=question.sampling_probability,
        units_per_user=question.group_size or 1,
        rounds=question.rounds,
        epsilon=question.epsilon,
        delta=question.delta,
        accountant=accountant,
    )


def _print(answer: _Answer, as_json: bool) -> None:
    typer.echo(json.dumps(answer.to_json(), allow_nan=False) if as_json else answer.sentence())


@contextmanager
def _status_when_slow(message: str) -> Iterator[None]:
    """Show a spinner on standard error after two seconds, if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    status = console.status(message)
    timer = threading.Timer(2.0, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # else a timer that just fired would start what stop() has stopped
        status.stop()

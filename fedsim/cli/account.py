"""`fedsim account`: ε from noise, or noise from ε, without running anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.accounting.choice_of_delta import delta_of_population, delta_sentence, is_promise
from fedsim.cli.compare import SeveralNumbers
from fedsim.cli.output import Json
from fedsim.errors import ConfigError, about
from fedsim.sampling import (
    BalancedSampling,
    CyclicSampling,
    FixedSizeSampling,
    PoissonSampling,
    Relation,
    Sampling,
    ShuffledSampling,
    TruncatedPoissonSampling,
)
from fedsim.utils.terminal import status_when_slow, table_console

if TYPE_CHECKING:  # accountants take a second to import, which no other command's help needs
    from fedsim.cli.answers import Question

app = typer.Typer(
    no_args_is_help=True,
    help="Compute ε from noise, or noise from ε; read ledgers and verify a model's ε.",
)

Rounds = Annotated[int, typer.Option(help="Number of rounds (noisy releases).")]
NoiseMultiplier = Annotated[
    float | None,
    typer.Option(help="Noise standard deviation divided by the most that one unit can add."),
]
Epsilon = Annotated[
    list[float] | None,
    typer.Option(help="Target ε, in place of --noise-multiplier. Several values give a curve."),
]
Delta = Annotated[
    list[str],
    typer.Option(
        help="δ of the guarantee, or n^-1.1, n being --users. Several values give a curve."
    ),
]
RelationName = Annotated[
    Relation | None, typer.Option(help="Neighbouring relation (default: that of the sampler).")
]
Users = Annotated[int | None, typer.Option(help="Number of users, a public value.")]
TradeOffFlag = Annotated[
    bool,
    typer.Option(
        "--tradeoff",
        help="Also say the most that an attacker can achieve: the bound on every test's errors.",
    ),
]


@app.command(cls=SeveralNumbers)
def uls(
    *,
    rounds: Rounds,
    delta: Delta,
    sampling_probability: Annotated[
        float | None,
        typer.Option(
            help="Probability that a user is drawn in a round; or give --users and --cohort-size."
        ),
    ] = None,
    users: Users = None,
    cohort_size: Annotated[
        float | None, typer.Option(help="Expected number of users per round.")
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(
            help="How users are drawn: poisson, truncated-poisson, fixed-size, shuffled, balanced "
            "or cyclic."
        ),
    ] = "poisson",
    max_cohort_size: Annotated[
        int | None, typer.Option(help="With --sampler truncated-poisson: most users of a round.")
    ] = None,
    participations: Annotated[
        int | None,
        typer.Option(help="With --sampler balanced: rounds of each user, one in each pass."),
    ] = None,
    groups: Annotated[
        int | None, typer.Option(help="With --sampler cyclic: number of groups that take turns.")
    ] = None,
    noise_multiplier: NoiseMultiplier = None,
    epsilon: Epsilon = None,
    accountant: Annotated[
        str | None,
        typer.Option(
            help="pld, rdp, moments, random-allocation, mixture or group-privacy (default: that of "
            "the sampler)."
        ),
    ] = None,
    relation: RelationName = None,
    tradeoff: TradeOffFlag = False,
    as_json: Json = False,
) -> None:
    """User-level sampling (ULS): by default each round draws every user independently.

    With --sampler balanced each user takes part once in each of --participations passes over the
    rounds. With --sampler cyclic the users take turns in --groups groups, as correlated noise needs
    it: "banded" with any cohort size, "blt" with whole groups only, for which no cohort size is
    given. For both samplers the ε is that of all rounds: to stop early costs no less.
    """
    from fedsim.cli.answers import Question

    if users is not None and users < 1:
        raise ConfigError(f"--users = {users}: give an integer >= 1")
    if (sampler == "balanced") != (participations is not None):
        raise ConfigError(
            f"--participations = {participations}: --sampler balanced needs it, and only that "
            "sampler takes it"
        )
    if (sampler == "cyclic") != (groups is not None):
        raise ConfigError(
            f"--groups = {groups}: --sampler cyclic needs it, and only that sampler takes it"
        )
    sampling: Sampling
    if groups is not None:
        some = sampling_probability is not None or cohort_size is not None
        share = _rate(sampling_probability, users, cohort_size) if some else 1.0 / groups
        if share * groups > 1.0 + 1e-9:  # 1/3 as it is typed is no third
            named = _given(sampling_probability, cohort_size)
            raise ConfigError(
                f"{named} with --groups = {groups}: a user is drawn in the rounds of one group "
                f"alone, so at most one in {groups} takes part in a round; give at most that, or "
                "leave it out for whole groups"
            )
        sampling = _of_run(CyclicSampling, rounds, groups, min(1.0, share * groups))
    elif participations is not None:
        if (given := sampling_probability or cohort_size) is not None:
            raise ConfigError(
                f"--sampling-probability or --cohort-size = {given:g}: with --sampler balanced "
                "--participations over --rounds decides it"
            )
        sampling = _of_run(BalancedSampling, rounds, participations)
    else:
        sampling = _user_sampling(
            sampler, sampling_probability, users, cohort_size, max_cohort_size
        )
    question = Question(rounds, sampling, "users", 1, noise_multiplier, accountant, relation)
    _answer(question, epsilon, delta, users, tradeoff=tradeoff, as_json=as_json)


@app.command(cls=SeveralNumbers)
def els(
    *,
    rounds: Rounds,
    group_size: Annotated[int, typer.Option(help="Most examples that a user contributes.")],
    sampling_probability: Annotated[
        float, typer.Option(help="Probability that an example is drawn in a round.")
    ],
    delta: Delta,
    users: Users = None,
    noise_multiplier: NoiseMultiplier = None,
    epsilon: Epsilon = None,
    accountant: Annotated[
        str | None, typer.Option(help="mixture or group-privacy (default: mixture).")
    ] = None,
    relation: RelationName = None,
    tradeoff: TradeOffFlag = False,
    as_json: Json = False,
) -> None:
    """Example-level sampling (ELS) with a cap on the examples of a user, accounted per user."""
    from fedsim.cli.answers import Question

    if group_size < 1:
        raise ConfigError(f"--group-size = {group_size}: give an integer >= 1")
    sampling = PoissonSampling(_probability(sampling_probability))
    name = accountant or "mixture"
    question = Question(rounds, sampling, "examples", group_size, noise_multiplier, name, relation)
    _answer(question, epsilon, delta, users, tradeoff=tradeoff, as_json=as_json)


def _answer(
    question: Question,
    epsilons: list[float] | None,
    deltas: list[str],
    users: int | None,
    *,
    tradeoff: bool,
    as_json: bool,
) -> None:
    """Answer for each target ε, if there are any, and each δ, and print."""
    from fedsim.accounting.trade_off import attacker_sentence
    from fedsim.cli.answers import answer, curve_json, curve_table

    targets: list[float | None] = list(epsilons) if epsilons else [None]
    numbers = [delta_of(text, users) for text in deltas]
    question.check(targets)
    if tradeoff and len(targets) * len(numbers) > 1:
        raise ConfigError(
            f"--tradeoff with {len(targets) * len(numbers)} pairs of ε and δ: give one of each"
        )
    with status_when_slow("accounting"):
        answers = [answer(question, target, delta) for target in targets for delta in numbers]
        curve = answers[0].trade_off() if tradeoff else None
    for delta in dict.fromkeys(numbers):
        warn_of_delta(delta, users)
    attacker = None if curve is None else curve.to_json()
    if as_json:
        single = answers[0].to_json() | ({"trade_off": attacker} if tradeoff else {})
        whole = single if len(answers) == 1 else curve_json(answers)
        typer.echo(json.dumps(whole, allow_nan=False))
    elif len(answers) == 1:
        typer.echo(answers[0].sentence())
        if attacker is not None:
            typer.echo(
                attacker_sentence(
                    attacker,
                    answers[0].relation.unit,
                    answers[0].relation.value,
                    hypothetical=not question.sampling.guaranteed,
                )
            )
    else:
        table_console().print(curve_table(answers))


def warn_of_delta(delta: float, users: int | None) -> None:
    """Say on standard error that a δ promises nothing to so many users, where that is so."""
    if users is not None and not is_promise(delta, users):
        typer.echo(delta_sentence(delta, users, public=True), err=True)


def _of_run(sampler: Callable[..., Sampling], *numbers: float) -> Sampling:
    with about("--"):
        return sampler(*numbers)


def _user_sampling(
    sampler: str,
    probability: float | None,
    users: int | None,
    cohort_size: float | None,
    max_cohort_size: int | None,
) -> Sampling:
    """Return the sampler, its rate given itself or as cohort over users."""
    if (sampler == "truncated-poisson") != (max_cohort_size is not None):
        raise ConfigError(
            f"--max-cohort-size = {max_cohort_size}: --sampler truncated-poisson needs it, "
            "and only that sampler takes it"
        )
    if sampler == "poisson":
        return PoissonSampling(_rate(probability, users, cohort_size))
    if users is None:
        raise ConfigError(f"--users = None: --sampler {sampler} needs the number of users")
    try:
        if max_cohort_size is not None:
            rate = _rate(probability, users if probability is None else None, cohort_size)
            return TruncatedPoissonSampling(rate, max_cohort_size, users)
        whole = _rate(probability, users, cohort_size) * users
        if sampler in ("fixed-size", "shuffled"):
            size = round(whole)
            if size and abs(whole - size) > 1e-9 * users:
                raise ConfigError(
                    f"{_given(probability, cohort_size)}: {sampler} sampling needs a whole number "
                    f"of users in a round, and that is {whole:g} of {users}"
                )
            kind = FixedSizeSampling if sampler == "fixed-size" else ShuffledSampling
            return kind(size, users)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"--sampler {sampler}: {error}") from None
    raise ConfigError(
        f"--sampler = {sampler!r}: give poisson, truncated-poisson, fixed-size, shuffled, "
        "balanced or cyclic"
    )


def _given(probability: float | None, cohort_size: float | None) -> str:
    if probability is not None:
        return f"--sampling-probability = {probability:g}"
    return f"--cohort-size = {cohort_size:g}"


def _rate(probability: float | None, users: int | None, cohort_size: float | None) -> float:
    if probability is not None:
        if cohort_size is not None:
            raise ConfigError(
                f"--sampling-probability = {probability} together with --cohort-size: give the "
                "probability, or --users and --cohort-size"
            )
        return _probability(probability)
    if users is None or cohort_size is None:
        raise ConfigError(
            f"--users = {users}, --cohort-size = {cohort_size}: give both, or "
            "--sampling-probability"
        )
    if not 0.0 < cohort_size <= users:
        raise ConfigError(
            f"--cohort-size = {cohort_size:g}: give a number above 0, at most --users = {users}"
        )
    return cohort_size / users


def _probability(probability: float) -> float:
    if not 0.0 < probability <= 1.0:
        raise ConfigError(f"--sampling-probability = {probability}: give a number in (0, 1]")
    return probability


def delta_of(text: str, users: int | None) -> float:
    """Return δ from a number, or from n^-x, which is a power of the declared number of users."""
    base, power, exponent = text.partition("^-")
    try:
        if power and base == "n":
            if users is None:
                raise ConfigError(f"--delta = {text}: needs --users, the public n")
            return delta_of_population(users, float(exponent))
        delta = float(text)
    except ConfigError:
        raise
    except ValueError:
        raise ConfigError(f"--delta = {text}: give a number in (0, 1), or n^-1.1") from None
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"--delta = {text}: give a number in (0, 1)")
    return delta

"""`fedsim account uls` and `els`: ε from noise, or noise from ε, without running anything."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from fedsim.accounting.choice_of_delta import delta_sentence, is_promise
from fedsim.cli.output import Json
from fedsim.errors import ConfigError, about
from fedsim.sampling import (
    BalancedConfig,
    BalancedSampling,
    CyclicSampling,
    FixedSizeSampling,
    PoissonSampling,
    Relation,
    Sampling,
    ShuffledSampling,
    TruncatedPoissonSampling,
    Wanted,
)
from fedsim.utils.terminal import status_when_slow

app = typer.Typer(
    no_args_is_help=True,
    help="Compute ε from noise, or noise from ε; read ledgers and verify a model's ε.",
)

Rounds = Annotated[int, typer.Option(min=1, help="Number of rounds (noisy releases).")]
NoiseMultiplier = Annotated[
    float | None,
    typer.Option(help="Noise standard deviation divided by the most that one unit can add."),
]
Epsilon = Annotated[float | None, typer.Option(help="Target ε, in place of --noise-multiplier.")]
Delta = Annotated[float, typer.Option(help="δ of the guarantee.")]
RelationName = Annotated[
    Relation | None, typer.Option(help="Neighbouring relation (default: that of the sampler).")
]
Users = Annotated[int | None, typer.Option(min=1, help="Number of users, a public value.")]
TradeOffFlag = Annotated[
    bool,
    typer.Option(
        "--tradeoff",
        help="Also say the most that an attacker can achieve: the bound on every test's errors.",
    ),
]


@app.command()
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
        typer.Option(
            help="With --sampler balanced: rounds of each user, one in each pass; or give --users "
            "and --cohort-size."
        ),
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
    it: "banded" at the price of any cohort size, "blt" at that of whole groups, for which no cohort
    size is given. For both samplers the ε is that of all rounds: to stop early costs no less.
    """
    if sampler == "balanced" and participations is None and cohort_size is not None:
        _rate(sampling_probability, users, cohort_size)  # refuses what does not go together
        wanted = Wanted(cohort_size, users or 0, users or 0, rounds, "--cohort-size", "users")
        participations = BalancedSampling.build(BalancedConfig(), wanted).participations
    elif sampler == "balanced" and (cohort_size or sampling_probability) is not None:
        raise ConfigError(
            f"--sampler = {sampler!r}: takes --participations alone, or --users and --cohort-size"
        )
    own = {
        "truncated-poisson": ("--max-cohort-size", max_cohort_size),
        "balanced": ("--participations", participations),
        "cyclic": ("--groups", groups),
    }
    for kind, (option, value) in own.items():
        if (sampler == kind) != (value is not None):
            raise ConfigError(
                f"{option} = {value}: --sampler {kind} needs it, and only that sampler takes it"
            )
    rate = None
    if sampler != "balanced" and not (
        sampler == "cyclic" and sampling_probability is None and cohort_size is None
    ):
        rate = _rate(sampling_probability, users, cohort_size)
    own_option = max_cohort_size or participations or groups
    with about(f"--sampler {sampler}: "):
        sampling = _sampling(sampler, rate, rounds, users, own_option)
    _answer(
        _Question(
            sampling, "users", 1, rounds, delta, noise_multiplier, epsilon, accountant, relation
        ),
        users,
        tradeoff=tradeoff,
        as_json=as_json,
    )


def _sampling(
    sampler: str, rate: float | None, rounds: int, users: int | None, number: int | None
) -> Sampling:
    """Return a sampler of users; `number` is its own option, `rate` None where it decides that."""
    if sampler == "poisson" and rate is not None:
        return PoissonSampling(rate)
    if sampler == "balanced" and number is not None:
        return BalancedSampling(rounds, number)
    if sampler == "cyclic" and number is not None:
        share = 1.0 if rate is None else rate * number
        return CyclicSampling(rounds, number, min(1.0, share) if share < 1.0 + 1e-9 else share)
    if sampler not in ("truncated-poisson", "fixed-size", "shuffled") or rate is None:
        raise ConfigError(
            f"--sampler = {sampler!r}: give poisson, truncated-poisson, fixed-size, shuffled, "
            "balanced or cyclic"
        )
    if users is None:
        raise ConfigError("--users = None: needs the number of users")
    if number is not None:
        return TruncatedPoissonSampling(rate, number, users)
    size = round(rate * users)
    if size and abs(rate * users - size) > 1e-9 * users:
        raise ConfigError(f"{rate * users:g} of {users} users a round: needs a whole number")
    kind = FixedSizeSampling if sampler == "fixed-size" else ShuffledSampling
    return kind(size, users)


def _rate(probability: float | None, users: int | None, cohort_size: float | None) -> float:
    if probability is None and users is not None and cohort_size is not None:
        if not 0.0 < cohort_size <= users:
            raise ConfigError(
                f"--cohort-size = {cohort_size:g}: give a number above 0, at most --users = {users}"
            )
        return cohort_size / users
    if probability is None or cohort_size is not None:
        raise ConfigError(
            f"--sampling-probability = {probability}, --users = {users}, --cohort-size = "
            f"{cohort_size}: give the probability, or --users and --cohort-size"
        )
    return probability


@app.command()
def els(
    *,
    rounds: Rounds,
    group_size: Annotated[int, typer.Option(min=1, help="Most examples that a user contributes.")],
    sampling_probability: Annotated[
        float, typer.Option(help="Probability that an example is drawn in a round.")
    ],
    delta: Delta,
    users: Users = None,
    noise_multiplier: NoiseMultiplier = None,
    epsilon: Epsilon = None,
    accountant: Annotated[str, typer.Option(help="mixture or group-privacy.")] = "mixture",
    relation: RelationName = None,
    tradeoff: TradeOffFlag = False,
    as_json: Json = False,
) -> None:
    """Example-level sampling (ELS) with a cap on the examples of a user, accounted per user."""
    with about("--sampling-probability: "):
        sampling = PoissonSampling(sampling_probability)
    _answer(
        _Question(
            *(sampling, "examples", group_size, rounds, delta),
            *(noise_multiplier, epsilon, accountant, relation),
        ),
        users,
        tradeoff=tradeoff,
        as_json=as_json,
    )


@dataclass(frozen=True)
class _Question:
    """What is asked: the options of a command, with one of noise and ε."""

    sampling: Sampling
    noun: str
    units_per_user: int
    rounds: int
    delta: float
    noise_multiplier: float | None
    epsilon: float | None
    accountant: str | None
    relation: Relation | None

    def __post_init__(self) -> None:
        if not 0.0 < self.delta < 1.0:
            raise ConfigError(f"--delta = {self.delta}: give a number in (0, 1)")
        if (self.noise_multiplier is None) == (self.epsilon is None):
            raise ConfigError(
                f"--noise-multiplier = {self.noise_multiplier}, --epsilon = {self.epsilon}: give "
                "one of the two; it decides the other"
            )
        if self.epsilon is not None and not 0.0 < self.epsilon < math.inf:
            raise ConfigError(f"--epsilon = {self.epsilon}: give a number > 0")
        if self.relation is Relation.FIXED_GRAPH and self.noun == "users":
            raise ConfigError(
                f"--relation = {self.relation.value!r}: has no proved price where users are "
                "sampled; ask for `fedsim account els`"
            )


def _answer(asked: _Question, users: int | None, *, tradeoff: bool, as_json: bool) -> None:
    """Compute noise and ε, and print them with their terms."""
    from fedsim.accounting.accountants import choose
    from fedsim.accounting.accountants import epsilon as epsilon_of
    from fedsim.accounting.calibration import calibrate_noise_multiplier
    from fedsim.accounting.events import RoundCost
    from fedsim.accounting.statement import PrivacyTerms, finite_or_none, noise_sentence
    from fedsim.accounting.trade_off import TradeOff, attacker_sentence, gaussian_text

    sampling, rounds, delta = asked.sampling, asked.rounds, asked.delta
    with about("--noise-multiplier: "):
        cost = RoundCost(sampling, asked.noise_multiplier or 0.0, asked.units_per_user)
    unit_noise = replace(cost, noise_multiplier=1.0)
    chosen, relation = choose([unit_noise], asked.accountant, asked.relation)
    with status_when_slow("accounting"):
        if asked.epsilon is not None:
            noise = calibrate_noise_multiplier(
                sampling=sampling,
                units_per_user=asked.units_per_user,
                rounds=rounds,
                epsilon=asked.epsilon,
                delta=delta,
                accountant=chosen.name,
                relation=relation,
            )
            cost = replace(cost, noise_multiplier=noise)
        spent = epsilon_of(cost, rounds, delta, chosen.name, relation)
        curve = TradeOff.of([(cost, rounds)], delta, chosen.name, relation) if tradeoff else None
    terms = PrivacyTerms.of(
        cost,
        asked.noun,
        rounds=rounds,
        delta=delta,
        epsilon=spent,
        accountant=chosen.name,
        relation=relation,
    )
    if users is not None and not is_promise(delta, users):
        typer.echo(delta_sentence(delta, users, public=True), err=True)
    attacker = None if curve is None else curve.to_json()
    if not as_json:
        typer.echo(terms.sentence())
        if attacker is not None:
            hypothetical = not sampling.guaranteed
            typer.echo(
                attacker_sentence(
                    attacker, relation.unit, relation.value, hypothetical=hypothetical
                )
            )
            if (gaussian := gaussian_text(attacker)) is not None:
                typer.echo(f"{gaussian[0].upper()}{gaussian[1:]}.")
        return
    infinite = math.isinf(spent)
    found: dict[str, Any] = {
        **terms.to_json(),
        "epsilon": finite_or_none(spent),
        "group_size": asked.units_per_user if asked.noun == "examples" else None,
        "guaranteed": terms.guaranteed,
        "secrecy": None if infinite else noise_sentence(None),
        "diverges": infinite and chosen.name == "group-privacy" and cost.noise_multiplier > 0.0,
    }
    typer.echo(json.dumps(found | ({"trade_off": attacker} if tradeoff else {}), allow_nan=False))

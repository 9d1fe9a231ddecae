"""`fedsim account uls` and `els`: compute ε from noise, or noise from ε, without training."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from fedsim.accounting.choice_of_delta import delta_sentence, is_promise
from fedsim.cli.output import Json
from fedsim.errors import ConfigError, about
from fedsim.registry import part
from fedsim.sampling import PoissonSampling, Relation, Sampling, Wanted
from fedsim.utils.terminal import status_when_slow

app = typer.Typer(
    no_args_is_help=True,
    help="Compute ε from noise, or noise from ε; read ledgers and verify a model's ε.",
)

Rounds = Annotated[int, typer.Option(min=1, help="Number of rounds (noisy releases).")]
NoiseMultiplier = Annotated[
    float | None,
    typer.Option(help="Noise standard deviation divided by the largest change of one unit."),
]
Epsilon = Annotated[float | None, typer.Option(help="Target ε, in place of --noise-multiplier.")]
Delta = Annotated[float, typer.Option(help="δ of the guarantee.")]
RelationName = Annotated[
    Relation | None, typer.Option(help="Neighbouring relation (default: the sampler's).")
]
Users = Annotated[int | None, typer.Option(min=1, help="Number of users, a public value.")]
TradeOffFlag = Annotated[
    bool,
    typer.Option(
        "--tradeoff",
        help="Also print the trade-off curve: a bound on the errors of every attack.",
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
        int | None,
        typer.Option(help="With --sampler truncated-poisson: maximum number of users per round."),
    ] = None,
    participations: Annotated[
        int | None,
        typer.Option(
            help="With --sampler balanced: number of rounds in which each user takes part, one per "
            "pass; or give --users and --cohort-size."
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
            help="pld, rdp, moments, random-allocation, mixture or group-privacy (default: the "
            "sampler's)."
        ),
    ] = None,
    relation: RelationName = None,
    tradeoff: TradeOffFlag = False,
    as_json: Json = False,
) -> None:
    """User-level sampling (ULS): by default each round draws every user independently.

    With --sampler balanced each user takes part once in each of --participations passes over the
    rounds. With --sampler cyclic the users take turns in --groups groups, which correlated noise
    needs. Mechanism "banded" allows any cohort size. "blt" needs whole groups: leave out
    --cohort-size. A balanced or cyclic run that stops early costs the ε of all planned rounds.
    """
    if relation is Relation.FIXED_GRAPH:
        raise ConfigError("--relation fixed-graph: no accountant supports it with sampled users")
    options = {
        "kind": sampler,
        "max_cohort_size": max_cohort_size,
        "participations": participations,
        "groups": groups,
    }
    wanted = _wanted(sampling_probability, users, cohort_size, rounds)
    question = _Question(
        *(_sampling(options, wanted), "users", 1, rounds, delta),
        *(noise_multiplier, epsilon, accountant, relation),
    )
    _answer(question, users, tradeoff=tradeoff, as_json=as_json)


def _wanted(
    probability: float | None, users: int | None, cohort_size: float | None, rounds: int
) -> Wanted:
    """Return the request that the sampler is built from; without --users, for one user."""
    if cohort_size is not None and (probability is not None or users is None):
        raise ConfigError(
            f"--sampling-probability = {probability}, --users = {users}, --cohort-size = "
            f"{cohort_size}: give the probability, or --users and --cohort-size"
        )
    population = users or 1
    field = "--cohort-size" if probability is None else "--sampling-probability"
    expected = cohort_size if probability is None else probability * population
    return Wanted(expected, population, population, rounds, field, "users")


def _sampling(options: dict[str, str | int | None], wanted: Wanted) -> Sampling:
    """Build the sampler as from the `strategy.sampling` table of a config."""
    from fedsim.config import parse_config

    table = {key: value for key, value in options.items() if value is not None}
    section = parse_config({"strategy": {"sampling": table}}).strategy.sampling
    kind = part("samplers", section.kind, "--sampler")
    with about(f"--sampler {section.kind}: "):
        sampling: Sampling = kind.build(section, wanted)
    return sampling


@app.command()
def els(
    *,
    rounds: Rounds,
    group_size: Annotated[int, typer.Option(min=1, help="Maximum number of examples per user.")],
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
    question = _Question(
        *(sampling, "examples", group_size, rounds, delta),
        *(noise_multiplier, epsilon, accountant, relation),
    )
    _answer(question, users, tradeoff=tradeoff, as_json=as_json)


@dataclass(frozen=True)
class _Question:
    """The options of a command: exactly one of `noise_multiplier` and `epsilon` is set."""

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


def _answer(asked: _Question, users: int | None, *, tradeoff: bool, as_json: bool) -> None:
    """Compute noise and ε, and print the guarantee."""
    from fedsim.accounting.accountants import choose
    from fedsim.accounting.accountants import epsilon as epsilon_of
    from fedsim.accounting.calibration import calibrate_noise_multiplier
    from fedsim.accounting.events import RoundCost
    from fedsim.accounting.statement import PrivacyTerms, finite_or_none
    from fedsim.accounting.trade_off import TradeOff, attacker_sentence, gaussian_text

    rounds, delta = asked.rounds, asked.delta
    with about("--noise-multiplier: "):
        cost = RoundCost(asked.sampling, asked.noise_multiplier or 0.0, asked.units_per_user)
    unit_noise = replace(cost, noise_multiplier=1.0)
    chosen, relation = choose([unit_noise], asked.accountant, asked.relation)
    with status_when_slow("accounting"):
        if asked.epsilon is not None:
            noise = calibrate_noise_multiplier(
                sampling=asked.sampling,
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
    if as_json:
        answer = {
            "epsilon": finite_or_none(spent),
            **terms.to_json(),
            "guaranteed": terms.guaranteed,
            "statement": terms.sentence(),
            **({"trade_off": attacker} if tradeoff else {}),
        }
        typer.echo(json.dumps(answer, allow_nan=False))
        return
    typer.echo(terms.sentence())
    if attacker is not None:
        hypothetical = not terms.guaranteed
        typer.echo(
            attacker_sentence(attacker, relation.unit, relation.value, hypothetical=hypothetical)
        )
        if (gaussian := gaussian_text(attacker)) is not None:
            typer.echo(f"{gaussian[0].upper()}{gaussian[1:]}.")

"""From a config to the parts of a plan: sampler, clip, denominator, noise, optimizer, task.

Each function reads the keys that it is about and asks the entry points for the part that they name.
`fedsim/strategy.py` puts the parts together.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.accounting.events import RoundCost
from fedsim.accounting.search import Search
from fedsim.clip_policy import AdaptiveClip, ClipPolicy, ClipSchedule, ConstantClip
from fedsim.clipping import Clip, NormalisedClip
from fedsim.config import Config, StrategyConfig
from fedsim.errors import ConfigError, about
from fedsim.estimators import Estimator
from fedsim.language_model import LanguageModel
from fedsim.materials import loader_name
from fedsim.noise.matrix import INDEPENDENT, NoiseMatrix, banded_matrix, buffered_matrix
from fedsim.plan import RoundPlan, TaskSpec
from fedsim.registry import distribution, is_own, part
from fedsim.sampling import CyclicSampling, PoissonSampling, Relation, Sampling, Wanted
from fedsim.server.over_rounds import Average, RateSchedule
from fedsim.server_optimizer import AutomaticOptimizer, ServerOptimizer

log = logging.getLogger(__name__)


def relation_of(config: Config) -> Relation:
    """Return the configured neighbouring relation, or that of the strategy or the sampler.

    Raises:
        ConfigError: texts with several owners and another relation than theirs, or the reverse.
    """
    asked, co_owned = config.privacy.relation, config.data.co_owned
    if asked is not None and co_owned != (asked == Relation.FIXED_GRAPH.value):
        has = "has" if co_owned else "does not have"
        wanted = "remove it" if co_owned else "give data.owners_column, or another relation"
        raise ConfigError(
            f"privacy.relation = {asked!r}: the data {has} texts with several owners, which "
            f'"fixed-graph" is for; {wanted}'
        )
    if asked is not None:
        return Relation(asked)
    if co_owned:
        return Relation.FIXED_GRAPH
    if config.strategy.default_relation is not None:
        return Relation(config.strategy.default_relation)
    sampler = part("samplers", config.strategy.sampling.kind, "strategy.sampling.kind")
    return Relation.ADD_OR_REMOVE if sampler.hides_size else Relation.REPLACE


def public_size(
    config: Config, declared: int | None, counted: int, field: str, noun: str
) -> tuple[int, str]:
    """Return the population size that rates and denominators use, and the sentence that says so.

    Under add-or-remove one user the true number is private. Declared, it is a public constant,
    right or wrong; counted, the guarantee rests on its being public, and the report says that.
    The other relations do not hide it.
    """
    if declared is not None:
        warn_if_far(declared, counted, field, noun)
        return declared, f"The number of {noun}, {declared}, was declared public ({field})."
    relation = relation_of(config)
    if relation is Relation.FIXED_GRAPH:
        return counted, (
            f"The number of {noun}, {counted}, follows from who owns which text, and from what "
            "else is public of the texts."
        )
    if relation is not Relation.ADD_OR_REMOVE:
        return counted, not_hidden(counted, noun)
    sentence = (
        f"The number of {noun}, {counted}, was counted in the private data and is treated as "
        f"public; declare it with {field} to rest on no private count."
    )
    log.warning("%s", sentence)
    return counted, sentence


def warn_if_far(declared: int, counted: int, field: str, noun: str) -> None:
    """Say to who runs it, in the log alone, that the data are far from a declared number."""
    if not 0.8 * declared <= counted <= 1.25 * declared:
        log.warning(
            "%s = %d, but the data have %d to train on (this number is not protected by the "
            "privacy guarantee: keep it to yourself; who is held out by data.held_out_users is "
            "none of them). The promise holds, but about %.3g times as many %s take part in a "
            "round as its noise is for; correct it if it is a mistake.",
            *(field, declared, counted, counted / declared, noun),
        )


def not_hidden(counted: int, noun: str) -> str:
    """Return the sentence on a number that the relation does not hide, and what that leaves out."""
    return (
        f"The number of {noun}, {counted}, is public under the relation. It is of users who have "
        "usable text and are not held out: replacing one by a user whose text is empty, or dropped "
        "when the data are prepared, or by one of another name where users are held out, changes "
        "it and is not covered."
    )


def build_sampling(
    config: Config, expected: float | None, sizes: tuple[int, int], field: str, noun: str
) -> Sampling:
    """Return the sampler that `strategy.sampling` asks for.

    Args:
        config: its `strategy.sampling` names the kind.
        expected: how many a round, on average or exactly.
        sizes: the population's size, public and true.
        field: the key of `expected`, for messages.
        noun: what is drawn, for messages.

    Raises:
        ConfigError: what the sampler refuses.
    """
    options = config.strategy.sampling
    wanted = Wanted(expected, *sizes, config.strategy.rounds, field, noun)
    built: Sampling = _built("samplers", options.kind, "strategy.sampling.kind", options, wanted)
    if config.privacy.mechanism == "blt" and isinstance(built, CyclicSampling) and built.rate < 1.0:
        return replace(built, priced_rate=1.0)  # its coins have no proved price
    return built


def build_clip(config: Config, model: LanguageModel) -> Clip:
    """Return the clip of `strategy.clip`, for the parameters of a model."""
    options = config.strategy.clip
    parameters = model.initial_parameters()
    clip: Clip = _built("clips", options.kind, "strategy.clip.kind", options, parameters)
    return NormalisedClip(clip=clip) if options.normalise else clip


def build_estimator(config: Config, sampling: Sampling, population: float) -> Estimator:
    """Return the estimator of `strategy.estimator`.

    Args:
        config: names the kind.
        sampling: the sampler whose rate it divides by.
        population: the public total weight of all units.
    """
    options, rate = config.strategy.estimator, sampling.probability
    built: Estimator = _built(
        "estimators", options.kind, "strategy.estimator.kind", options, rate, population
    )
    return built


def server_optimizer(config: Config) -> ServerOptimizer:
    """Return the server's optimizer, with schedule and average over the rounds of the run."""
    options, rounds = config.server, config.strategy.rounds
    name, schedule, average = options.optimizer, options.schedule, options.average
    built: ServerOptimizer = _built("server_optimizers", name, "server.optimizer", options)
    if isinstance(built, AutomaticOptimizer):
        built = replace(built, rounds=rounds)
    if schedule is not None:
        whole = schedule.model_copy(update={"rounds": schedule.rounds or rounds})
        built = replace(built, schedule=RateSchedule(**whole.model_dump()))
    if average is not None:
        over = Average(average.kind, average.first_of(rounds), average.decay)
        built = replace(built, average=over)
    return built


def _built(group: str, name: str, field: str, *arguments: object) -> Any:  # noqa: ANN401
    """Return what the named part builds; a `ConfigError` names the field for its `ValueError`."""
    found = part(group, name, field)
    try:
        return found.build(*arguments)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{field} = {name!r}: {error}") from error


def clip_policy(
    config: Config, clip: Clip, noise_multiplier: float, expected_units: float
) -> ClipPolicy:
    """Return the clip policy: constant, a schedule, or adaptive to a quantile of norms.

    Args:
        config: its `strategy.clip` names the policy.
        clip: the first round's.
        noise_multiplier: of a round, the count of an adaptive clip included.
        expected_units: of a round, from public sizes alone.

    Raises:
        ConfigError: a count that would cost more than the round may, or whose cost is unproved.
    """
    asked = config.strategy.clip
    if asked.schedule is not None:
        schedule = asked.schedule
        scale = schedule.final_l2_clip_norm / clip.norm
        with about("strategy.clip.schedule."):
            return ClipSchedule(schedule.kind, scale, schedule.rounds or config.strategy.rounds)
    if asked.adaptive is None:
        return ConstantClip()
    adaptive = asked.adaptive
    policy = AdaptiveClip(
        quantile=adaptive.quantile,
        learning_rate=adaptive.learning_rate,
        count_noise_stddev=adaptive.count_noise_stddev
        or max(expected_units / 20.0, 2.0 * noise_multiplier),
        expected_units=expected_units,
    )
    with about("strategy.clip.adaptive."):
        policy.update_noise_multiplier(noise_multiplier)
    return policy


def noise_matrix(config: Config, sampling: Sampling) -> NoiseMatrix:
    """Return the matrix that the configured mechanism correlates noise by.

    Raises:
        ConfigError: more bands than rounds, or another sampler than cyclic.
    """
    privacy, rounds = config.privacy, config.strategy.rounds
    if privacy.mechanism == "independent":
        return INDEPENDENT
    named = f"privacy.mechanism = {privacy.mechanism!r}"
    if not isinstance(sampling, CyclicSampling):
        raise ConfigError(
            f"{named}: needs rounds of one user that are apart, which {sampling.kind!r} sampling "
            'does not keep; give strategy.sampling = { kind = "cyclic", groups = ... }'
        )
    with about("privacy."):
        if privacy.mechanism == "blt":
            return buffered_matrix(rounds, sampling.groups, privacy.buffers or 3)
        return banded_matrix(rounds, privacy.bands or sampling.groups)


def noise_multiplier(config: Config, sampling: Sampling, units_per_user: int) -> float:
    """Return the configured noise multiplier, or the least that keeps the configured ε."""
    privacy = config.privacy
    if privacy.delta is None:
        raise ConfigError("privacy.delta: missing; a guarantee needs it, such as delta = 1e-5")
    if privacy.noise_multiplier is not None:
        return privacy.noise_multiplier
    if privacy.epsilon is None:
        raise ConfigError("privacy: give epsilon (with delta) or noise_multiplier")
    with about("privacy.search."):
        search = search_of(config)
    scores = score_rounds(config) if search is None else ()
    with about("training.private_evaluation beside the rounds: " if scores else "privacy: "):
        score = RoundCost(PoissonSampling(1.0), score_noise(config))
        return calibrate_noise_multiplier(
            sampling=sampling,
            units_per_user=units_per_user,
            rounds=config.strategy.rounds,
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            accountant=privacy.accounted_by,
            relation=relation_of(config),
            search=search,
            beside=[(score, len(scores))] if scores else [],
        )


def search_of(config: Config) -> Search | None:
    """Return the search that the run is a trial of, or None."""
    asked = config.privacy.search
    if asked is None:
        return None
    return Search(asked.trials, config.strategy.rounds, score_noise(config), asked.stopping)


def score_rounds(config: Config) -> tuple[int, ...]:
    """Return the rounds after which a private score is released."""
    asked, last = config.training.private_evaluation, config.strategy.rounds
    if asked is None:
        return ()
    return (*range(asked.every or last, last, asked.every or last), last)


def score_noise(config: Config) -> float:
    """Return the noise multiplier of private scores; 0 where there are none."""
    asked = config.training.private_evaluation
    return 0.0 if asked is None else asked.noise_multiplier


def user_task(config: StrategyConfig) -> TaskSpec:
    """Return the task of one user: averaged gradient or local SGD, as `strategy.local` says."""
    options = {
        "group_size": config.group_size,
        "selection": config.selection,
        "user_weight_cap": getattr(config, "user_weight_cap", None),
    }
    local = config.local.model_dump(exclude={"task"})
    return TaskSpec(name=config.local.task, options={**options, **local})


def plug_ins(config: Config, plan: RoundPlan) -> tuple[str, ...]:
    """Return the sentence on parts that are not fedsim's own; () where all are."""
    clip = plan.clip.clip if isinstance(plan.clip, NormalisedClip) else plan.clip
    accountant = (plan.accountant or plan.sampling.accountant or "pld").partition(" ")[0]
    named = [
        ("strategies", "strategy", config.strategy.name),
        ("tasks", "task", plan.task.name),
        ("models", "model", loader_name(config.model.name_or_path)),
        ("samplers", "sampler", plan.sampling.kind),
        ("clips", "clip", clip.kind),
        ("estimators", "estimator", plan.estimator.kind),
        ("accountants", "accountant", accountant),
        ("server_optimizers", "server optimizer", plan.optimizer.name),
    ]
    found = [
        f"{kind} {name!r} of {package}"
        for group, kind, name in named
        if (package := distribution(group, name)) and not is_own(package)
    ]
    if not found:
        return ()
    return (f"The guarantee rests on the own proof of code outside of fedsim: {', '.join(found)}.",)

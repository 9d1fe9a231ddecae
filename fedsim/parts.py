"""Build the parts of a plan from a config: sampler, clip, denominator, noise, optimizer, task.

Each function reads its own config keys and loads the named part through entry points.
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
    """Return the configured neighbouring relation, or the default of the strategy or sampler.

    Raises:
        ConfigError: texts have several owners and the relation is not fixed-graph, or the reverse.
    """
    asked, co_owned = config.privacy.relation, config.data.co_owned
    if asked is not None and co_owned != (asked == Relation.FIXED_GRAPH.value):
        has = "has" if co_owned else "does not have"
        wanted = "remove it" if co_owned else "give data.owners_column, or another relation"
        raise ConfigError(
            f"privacy.relation = {asked!r}: the data {has} texts with several owners; "
            f'"fixed-graph" is the relation for such texts; {wanted}'
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
    """Return the population size for rates and denominators, and a sentence for the report.

    Under add-or-remove-one, the true number is private. A declared number is a public constant,
    right or wrong. With a counted number, the guarantee assumes that it is public, and the report
    says so. The other relations do not hide the number.
    """
    if declared is not None:
        warn_if_far(declared, counted, field, noun)
        return declared, f"The number of {noun}, {declared}, was declared public ({field})."
    relation = relation_of(config)
    if relation is Relation.FIXED_GRAPH:
        return counted, (
            f"The number of {noun}, {counted}, follows from the public owners of each text and "
            "from other public facts about the texts."
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
    """Log a warning if the true number is far from the declared one; reports do not show it."""
    if not 0.8 * declared <= counted <= 1.25 * declared:
        log.warning(
            "%s = %d, but the data have %d to train on, users held out by data.held_out_users "
            "not counted (the privacy guarantee does not protect this number: do not publish it). "
            "The guarantee holds, but about %.3g times as many %s take part in a round as the "
            "noise is set for; correct the declared number if it is a mistake.",
            *(field, declared, counted, counted / declared, noun),
        )


def not_hidden(counted: int, noun: str) -> str:
    """Return a sentence on a number that the relation does not hide, and its exceptions."""
    return (
        f"The number of {noun}, {counted}, is public under the relation. It counts users with "
        "usable text who are not held out. Some replacements change it and are not covered: by a "
        "user whose text is empty or dropped during preparation, or, where users are held out, by "
        "a user with another name."
    )


def build_sampling(
    config: Config, expected: float | None, sizes: tuple[int, int], field: str, noun: str
) -> Sampling:
    """Return the sampler of `strategy.sampling`.

    Args:
        config: `strategy.sampling` names the kind.
        expected: units per round, on average or exactly.
        sizes: the public and the true population size.
        field: config key of `expected`, for messages.
        noun: "users" or "examples", for messages.

    Raises:
        ConfigError: the sampler refuses these settings.
    """
    options = config.strategy.sampling
    wanted = Wanted(expected, *sizes, config.strategy.rounds, field, noun)
    built: Sampling = _built("samplers", options.kind, "strategy.sampling.kind", options, wanted)
    if config.privacy.mechanism == "blt" and isinstance(built, CyclicSampling) and built.rate < 1.0:
        return replace(built, priced_rate=1.0)  # BLT noise has no proved price with coins
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
        sampling: its probability enters the denominator.
        population: public total weight of all units.
    """
    options, rate = config.strategy.estimator, sampling.probability
    built: Estimator = _built(
        "estimators", options.kind, "strategy.estimator.kind", options, rate, population
    )
    return built


def server_optimizer(config: Config) -> ServerOptimizer:
    """Return the server's optimizer, with the run's rate schedule and parameter average."""
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
    """Build the named part; its `ValueError` becomes a `ConfigError` that names the field."""
    implementation = part(group, name, field)
    try:
        return implementation.build(*arguments)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{field} = {name!r}: {error}") from error


def clip_policy(
    config: Config, clip: Clip, noise_multiplier: float, expected_units: float
) -> ClipPolicy:
    """Return the clip policy: constant, a schedule, or adaptive to a quantile of norms.

    Args:
        config: `strategy.clip` names the policy.
        clip: clip of the first round.
        noise_multiplier: noise multiplier of a whole round, including an adaptive clip's count.
        expected_units: expected units per round, computed from public sizes.

    Raises:
        ConfigError: the adaptive clip's count would cost more than the whole round.
    """
    options = config.strategy.clip
    if options.schedule is not None:
        schedule = options.schedule
        scale = schedule.final_l2_clip_norm / clip.norm
        with about("strategy.clip.schedule."):
            return ClipSchedule(schedule.kind, scale, schedule.rounds or config.strategy.rounds)
    if options.adaptive is None:
        return ConstantClip()
    adaptive = options.adaptive
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
    """Return the matrix that correlates the noise of the configured mechanism.

    Raises:
        ConfigError: more bands than rounds, or a sampler that is not cyclic.
    """
    privacy, rounds = config.privacy, config.strategy.rounds
    if privacy.mechanism == "independent":
        return INDEPENDENT
    named = f"privacy.mechanism = {privacy.mechanism!r}"
    if not isinstance(sampling, CyclicSampling):
        raise ConfigError(
            f"{named}: needs a minimum number of rounds between two rounds of one user; "
            f"{sampling.kind!r} sampling has no such minimum; "
            'give strategy.sampling = { kind = "cyclic", groups = ... }'
        )
    with about("privacy."):
        if privacy.mechanism == "blt":
            return buffered_matrix(rounds, sampling.groups, privacy.buffers or 3)
        return banded_matrix(rounds, privacy.bands or sampling.groups)


def noise_multiplier(config: Config, sampling: Sampling, units_per_user: int) -> float:
    """Return the configured noise multiplier, or the smallest one that meets the configured ε."""
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
    """Return the hyperparameter search that this run belongs to, or None."""
    options = config.privacy.search
    if options is None:
        return None
    return Search(options.trials, config.strategy.rounds, score_noise(config), options.stopping)


def score_rounds(config: Config) -> tuple[int, ...]:
    """Return the rounds after which a private score is released, ascending."""
    options, last = config.training.private_evaluation, config.strategy.rounds
    if options is None:
        return ()
    return (*range(options.every or last, last, options.every or last), last)


def score_noise(config: Config) -> float:
    """Return the noise multiplier of private scores; 0 without private scores."""
    options = config.training.private_evaluation
    return 0.0 if options is None else options.noise_multiplier


def user_task(config: StrategyConfig) -> TaskSpec:
    """Return the task of one user from `strategy.local`: averaged gradient or local SGD."""
    options = {
        "group_size": config.group_size,
        "selection": config.selection,
        "user_weight_cap": getattr(config, "user_weight_cap", None),
    }
    local = config.local.model_dump(exclude={"task"})
    return TaskSpec(name=config.local.task, options={**options, **local})


def plug_ins(config: Config, plan: RoundPlan) -> tuple[str, ...]:
    """Return one sentence that names the plug-ins in use; () without plug-ins."""
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
    plugins = [
        f"{kind} {name!r} of {package}"
        for group, kind, name in named
        if (package := distribution(group, name)) and not is_own(package)
    ]
    if not plugins:
        return ()
    return (f"The guarantee rests on the proofs of plug-ins: {', '.join(plugins)}.",)

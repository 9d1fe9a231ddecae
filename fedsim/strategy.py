"""From a config to a plan: what all strategies share.

A strategy says what is its own: the pool, the sampler, the task, the estimator, and what its
guarantee rests on. `private_plan` fills in the rest from the config, in one way for all of them:
clip, clip policy, noise multiplier, relation, optimizer and the source of noise.
"""

from __future__ import annotations

import logging
import math
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedsim.accounting.accountants import choose, epsilon_of_composition
from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.accounting.events import RoundCost
from fedsim.accounting.search import Search
from fedsim.accounting.statement import PrivacyTerms
from fedsim.clip_policy import AdaptiveClip, ClipPolicy, ClipSchedule, ConstantClip
from fedsim.clipping import Clip, FlatClip, NormalisedClip, PerLayerClip, layers_of
from fedsim.config import Config, StrategyConfig
from fedsim.config.schema import ClipConfig
from fedsim.data.store import ranks
from fedsim.errors import ConfigError, about, kind_of
from fedsim.estimators import Estimator
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials, loader_name
from fedsim.noise.matrix import INDEPENDENT, NoiseMatrix, banded_matrix, buffered_matrix
from fedsim.plan import RoundPlan, TaskSpec
from fedsim.registry import distribution, distributions, is_own, resolve
from fedsim.sampling import (
    BalancedSampling,
    CyclicSampling,
    FixedSizeSampling,
    PoissonSampling,
    Relation,
    Sampling,
    ShuffledSampling,
    TruncatedPoissonSampling,
    rounds_text,
)
from fedsim.seeding import Hashes, hashes
from fedsim.server_optimizer import ServerOptimizer
from fedsim.utils.json_text import digest

log = logging.getLogger(__name__)

_OF_EXAMPLES = "example-gradient"  # of fedsim's own tasks the one that is not a user's


def build_plan(config: Config, materials: Materials) -> RoundPlan:
    """Return the plan that the strategy of the config builds, with the seed of its releases.

    Raises:
        ConfigError: an unknown strategy, what the strategy refuses, a plan whose price is not that
            of its pool, or noise without a finite ε.
    """
    build: Callable[[Config, Materials], RoundPlan] = resolve(
        "strategies", config.strategy.name, "strategy.name"
    )
    plan = _checked(build(config, materials), config, materials)
    _check_finite(plan, config)
    seed = materials.seed
    if plan.entropy == "secure" and seed < 2**64:
        seed = secrets.randbits(128)  # these materials were loaded without a secret
    search = config.privacy.search
    if search is not None and search.trial is not None:  # trials of a search are independent
        seed = int(digest([seed, "trial", search.trial])[:32], 16)
    return replace(
        plan,
        assumptions=(*plan.assumptions, *_of_others(config, plan)),
        seed=seed,
        addresses=_addresses(plan, materials) if plan.addresses is None else plan.addresses,
    )


def _addresses(plan: RoundPlan, materials: Materials) -> Hashes:
    """Return who or what each unit of a plan is, (num_units,) uint64.

    Of a user a digest of the name; of an example that, its text, and a number where the user has
    the same text several times.
    """
    store, pool = materials.store, plan.pool
    if plan.unit == "user":
        return store.user_keys[materials.split.users[pool]]
    users = np.searchsorted(store.user_offsets, pool, side="right") - 1
    addresses = hashes(store.user_keys[users], store.example_keys[pool])
    order = np.argsort(addresses, kind="stable")
    repeats = np.empty(len(pool), np.int64)
    repeats[order] = ranks(np.unique(addresses, return_counts=True)[1])
    return hashes(addresses, repeats)


def _of_others(config: Config, plan: RoundPlan) -> tuple[str, ...]:
    """Return whose code the promise rests on besides, where the run has plug-ins."""
    named = {
        "strategies": config.strategy.name,
        "tasks": plan.task.name,
        "models": loader_name(config.model.name_or_path),
    }
    kinds = {"strategies": "strategy", "tasks": "task", "models": "model"}
    found = [
        f"{kinds[group]} {named[group]!r} of {' '.join(package.split()[:2])}"
        for group, package in distributions(named).items()
        if package and not is_own(package)
    ]
    if not found:
        return ()
    return (f"The guarantee rests on code that is not fedsim's, too: {', '.join(found)}.",)


def plan_terms(
    config: Config,
    plan: RoundPlan,
    epsilon: float = math.inf,
    *,
    scored: bool = True,
    drawn: bool = True,
) -> PrivacyTerms:
    """Return what an ε of all rounds of a plan is said with, at the config's δ.

    Args:
        config: of the plan.
        plan: the rounds.
        epsilon: inf where none is certified, or where it stands elsewhere.
        scored: whether ε is of the plan's private scores too.
        drawn: whether there are coins and noise already: of those to come none is secret yet.
    """
    scores = plan.scores_after(0) if scored else []
    return PrivacyTerms.of(
        plan.cost,
        f"{plan.unit}s",
        rounds=config.strategy.rounds + sum(count for _, count in scores),
        others=scores,
        delta=config.privacy.delta,
        epsilon=epsilon,
        accountant=plan.accountant,
        relation=plan.relation,
        noise=plan.entropy if drawn or plan.entropy == "seeded" else None,
        unit=config.data.unit,
    )


def _checked(plan: RoundPlan, config: Config, materials: Materials) -> RoundPlan:
    """Return what a strategy built, where its price can be that of what it does.

    Raises:
        ConfigError: it is no plan; its sampler, estimator or clip is none that a price is proved
            for; it has another relation than the config; its pool has a unit twice, one that is
            not trained on, or more of a user than it says.
    """
    where = f"strategy.name = {config.strategy.name!r}"
    if type(plan) is not RoundPlan:  # one of its subclasses may draw otherwise than it says
        raise ConfigError(f"{where}: built {kind_of(plan)}; wanted what private_plan returns")
    inner = getattr(plan.clip, "clip", plan.clip)  # workers make a clip anew, of fedsim's class
    for part in map(type, (plan.sampling, plan.estimator, plan.clip_policy, plan.clip, inner)):
        if part.__module__.partition(".")[0] != "fedsim":
            raise ConfigError(
                f"{where}: {part.__name__} of {part.__module__}: prices are proved for fedsim's "
                "own samplers, estimators, clips and clip policies; take one of those"
            )
    if plan.noise_multiplier > 0.0 and plan.relation is not (meant := relation_of(config)):
        raise ConfigError(
            f"{where}: relation = {plan.relation.value!r}: the config's is {meant.value!r}; build "
            "the plan by private_plan, or change the config"
        )
    _check_task(plan, materials, where)
    split, store, pool = materials.split, materials.store, plan.pool
    trained = np.arange(split.num_users) if plan.unit == "user" else split.train_examples
    if not isinstance(pool, np.ndarray) or pool.dtype.kind not in "iu" or pool.ndim != 1:
        raise ConfigError(f"{where}: pool: give a row of whole numbers, one for each unit")
    if len(np.unique(pool)) < len(pool) or not np.isin(pool, trained).all():
        raise ConfigError(
            f"{where}: pool: give each {plan.unit} once, and none that is not trained on"
        )
    if plan.unit == "example" and plan.noise_multiplier > 0.0:
        owners = np.searchsorted(store.user_offsets, pool, side="right")
        of_each = np.bincount(owners) if store.graph is None else store.graph.degrees(pool)
        if store.graph is None and plan.owners is not None:
            pairs = {*zip(owners.tolist(), plan.owners.tolist(), strict=False)}
            if len({one for one, _ in pairs}) < len(pairs):
                raise ConfigError(f"{where}: owners: give all examples of a user one number")
        if of_each.max(initial=0) > plan.units_per_user:
            raise ConfigError(
                f"{where}: units_per_user = {plan.units_per_user}: a user has more in the pool; "
                "give the most that one may have, and pool no more of anybody"
            )
    return plan


def _check_task(plan: RoundPlan, materials: Materials, where: str) -> None:
    """Raise `ConfigError` for a task of other units, or a plug-in's that engines could not call."""
    spec = plan.task
    if is_own(distribution("tasks", spec.name)):
        if (spec.name == _OF_EXAMPLES) != (plan.unit == "example"):
            raise ConfigError(f"{where}: task {spec.name!r} is not for {plan.unit}s")
        return
    make = resolve("tasks", spec.name, f"{where}: task")
    with about(f"{where}: task {spec.name!r} cannot be made: ", (TypeError, ValueError)):
        task = make(materials, **spec.options)
    wanted = ("averages_gradients", "unit", "units", "update")
    if lacks := [name for name in wanted if not hasattr(task, name)]:
        raise ConfigError(f"{where}: task {spec.name!r} lacks {', '.join(lacks)}")


def _check_finite(plan: RoundPlan, config: Config) -> None:
    """Raise `ConfigError` where there is noise and no ε, so that what has a price is covered."""
    if plan.noise_multiplier == 0.0:
        return
    if (delta := config.privacy.delta) is None:
        raise ConfigError("privacy.delta: missing; a guarantee needs it, such as delta = 1e-5")
    costs = [(plan.cost, config.strategy.rounds), *plan.scores_after(0)]
    epsilon = epsilon_of_composition(costs, delta, plan.accountant, plan.relation)
    if not math.isfinite(epsilon):
        name = choose([cost for cost, _ in costs], plan.accountant, plan.relation)[0].name
        raise ConfigError(
            f"privacy.delta = {delta:g}: the {name} accountant certifies no finite ε at it for "
            f"{rounds_text(config.strategy.rounds)} with noise multiplier "
            f"{plan.noise_multiplier:g}; take a larger δ or more noise, or "
            "noise_multiplier = 0 for a run without a guarantee"
        )


_SHUFFLED = (
    "Cohorts were taken in shuffled passes. The ε is that of Poisson sampling at the same rate, "
    "another mechanism, as the papers print it: it is hypothetical, not a guarantee for this run. "
    'strategy.sampling.kind = "balanced" hears everybody once a pass too, and has one.'
)


def private_plan(
    config: Config,
    materials: Materials,
    *,
    unit: Literal["user", "example"],
    pool: npt.NDArray[np.int64],
    population: int,
    sampling: Sampling,
    task: TaskSpec,
    estimator: Estimator,
    units_per_user: int = 1,
    owners: npt.NDArray[np.integer] | None = None,
    assumptions: tuple[str, ...] = (),
    dropped: Mapping[str, int] | None = None,
    clip: Clip | None = None,
) -> RoundPlan:
    """Return the plan of a strategy: its own fields as given, all others from the config.

    The noise multiplier is the config's, or the least that keeps its ε with this sampler.

    Args:
        config: validated; `[privacy]`, `[server]` and `strategy.clip` are read here.
        materials: what is trained on.
        unit: what is sampled.
        pool: (num_units,) the units' indices in the data.
        population: the public number of units that rates and denominators use.
        sampling: which units take part in a round.
        task: what one unit computes.
        estimator: turns a cohort's sum into an estimate; of the sampler's probability.
        units_per_user: the most units of the pool that belong to one user.
        owners: (num_units,) integers: the user that each unit belongs to; None: each its own.
        assumptions: sentences that the guarantee rests on, for the report.
        dropped: training examples that are left out, a count for each reason.
        clip: by default that of `strategy.clip`.

    Raises:
        ConfigError: no clip or δ, an unreachable ε, an accountant or a relation without a proof
            for this sampler.
    """
    strategy = config.strategy
    if materials.store.graph is not None and not config.data.co_owned:
        raise ConfigError(
            "data.owners_column = None: the store has texts with several owners; set it, so that "
            "all of them are promised something"
        )
    clip = clip or build_clip(strategy.clip, materials.model)
    matrix = noise_matrix(config, sampling)
    search, scores = search_of(config), score_rounds(config)
    noise = noise_multiplier(config, sampling, units_per_user)
    if isinstance(sampling, CyclicSampling) and matrix.feedback:
        assumptions = (*assumptions, matrix.in_words(relation_of(config).unit, sampling.groups))
    if not any(re.match(rf"The number of [\w ]+, {population},", said) for said in assumptions):
        assumptions = (
            *assumptions,
            f"The number of {unit}s that rates and denominators use, {population}, is treated as "
            "public.",
        )
    try:
        return RoundPlan(
            strategy=strategy.name,
            unit=unit,
            pool=pool,
            sampling=sampling,
            task=task,
            clip=clip,
            clip_policy=clip_policy(config, clip, noise, sampling.probability * population),
            estimator=estimator,
            noise_multiplier=noise,
            units_per_user=units_per_user,
            relation=relation_of(config),
            optimizer=server_optimizer(config),
            entropy=config.privacy.noise,
            assumptions=assumptions if sampling.guaranteed else (*assumptions, _SHUFFLED),
            dropped=dropped or {},
            accountant=config.privacy.accountant,
            matrix=matrix,
            owners=owners,
            search=search,
            score_noise_multiplier=_score_noise(config),
            score_rounds=scores,
        )
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"strategy.name = {strategy.name!r}: {error}") from error


def search_of(config: Config) -> Search | None:
    """Return the search that the run is a trial of, or None."""
    asked = config.privacy.search
    if asked is None:
        return None
    return Search(asked.trials, config.strategy.rounds, _score_noise(config), asked.stopping)


def score_rounds(config: Config) -> tuple[int, ...]:
    """Return the rounds after which a private score is released."""
    asked, last = config.training.private_evaluation, config.strategy.rounds
    if asked is None:
        return ()
    return (*range(asked.every or last, last, asked.every or last), last)


def _score_noise(config: Config) -> float:
    asked = config.training.private_evaluation
    return 0.0 if asked is None else asked.noise_multiplier


def public_size(
    config: Config, declared: int | None, counted: int, field: str, noun: str
) -> tuple[int, str]:
    """Return the population size that rates and denominators use, and the sentence that says so.

    Under add-or-remove one user the true number is private. Declared, it is a public constant,
    right or wrong; counted, the guarantee rests on its being public, and the report says that.
    The other relations do not hide it.
    """
    if declared is not None:
        expected = config.strategy.cohort_size or config.strategy.batch_size
        warn_if_far(declared, counted, field, noun, expected)
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


def warn_if_far(declared: int, counted: int, field: str, noun: str, expected: float | None) -> None:
    """Say to who runs it, in the log alone, that the data are far from a declared number."""
    if not 0.8 * declared <= counted <= 1.25 * declared:
        meant = expected or 100.0
        log.warning(
            "%s = %d, but the data have %d to train on (no ε covers this number: keep it to "
            "yourself; who is held out by data.held_out_users is none of them). The "
            "promise holds, but where the noise of a round is for %g %s, about %.3g take part; "
            "correct it if it is a mistake.",
            *(field, declared, counted, meant, noun, meant * counted / declared),
        )


def not_hidden(counted: int, noun: str) -> str:
    """Return the sentence on a number that the relation does not hide, and what that leaves out."""
    return (
        f"The number of {noun}, {counted}, is public under the relation. It is of users who have "
        "usable text and are not held out: replacing one by a user whose text is empty, or dropped "
        "when the data are prepared, or by one of another name where users are held out, changes "
        "it and is not covered."
    )


def relation_of(config: Config) -> Relation:
    """Return the configured neighbouring relation, or the sampler's own.

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
    if config.strategy.concentration_radius is not None:  # all users are in every round
        return Relation.REPLACE
    fixed = config.strategy.sampling.kind == "fixed-size"
    return Relation.REPLACE if fixed else Relation.ADD_OR_REMOVE


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
        ConfigError: `expected` is missing, too large or not whole where it must be; or a
            sampler that insists on the true population size and was given another.
    """
    public, true = sizes
    asked = config.strategy.sampling
    if asked.kind == "balanced":
        return _balanced(config.strategy, expected, public, field, noun)
    if asked.groups is not None:
        return _cyclic(config.strategy, asked.groups, expected, (public, field, noun))
    rate = probability(expected, public, field, noun)
    if asked.kind == "poisson":
        return PoissonSampling(rate)
    if asked.max_cohort_size is not None:
        _check_true(true <= public, asked.kind, public, f"there are {true} {noun}, more than that")
        return TruncatedPoissonSampling(rate, min(asked.max_cohort_size, public), public)
    _check_true(true == public, asked.kind, public, f"there are {true} {noun}")
    if expected is None or expected != int(expected):
        raise ConfigError(f"{field} = {expected}: {asked.kind} sampling needs a whole number")
    sampler = FixedSizeSampling if asked.kind == "fixed-size" else ShuffledSampling
    return sampler(int(expected), public)


def _balanced(
    strategy: StrategyConfig, expected: float | None, size: int, field: str, noun: str
) -> BalancedSampling:
    """Return the passes that are asked for, or those that give the expected number a round."""
    count, rounds = strategy.sampling.participations, strategy.rounds
    if count is None:
        share = probability(expected, size, field, noun) * rounds
        count = max(1, round(share))
        if Fraction(expected or 0.0) * rounds != count * size:
            raise ConfigError(
                f"{field} = {expected:g}: gives {share:g} rounds of {rounds} to each of {size} "
                f"{noun}, and balanced sampling needs a whole number; give "
                f"strategy.sampling.participations = {count} in place of it"
            )
    elif expected is not None:
        raise ConfigError(
            f"{field} = {expected:g} with strategy.sampling.participations = {count}: each decides "
            "the other, give one"
        )
    with about("strategy.sampling."):
        return BalancedSampling(rounds, count)


def _cyclic(
    strategy: StrategyConfig,
    groups: int,
    expected: float | None,
    drawn: tuple[int, str, str],
) -> CyclicSampling:
    """Return the turns that are asked for: of the expected number a round, or of whole groups."""
    size, field, noun = drawn
    rate = 1.0 if expected is None else expected * groups / size
    if rate > 1.0:
        raise ConfigError(
            f"{field} = {expected:g} with strategy.sampling.groups = {groups}: a group has "
            f"{size / groups:g} of {size} {noun} on average; give at most that, or leave it out "
            "for whole groups"
        )
    with about("strategy.sampling."):
        return CyclicSampling(strategy.rounds, groups, rate)


def noise_matrix(config: Config, sampling: Sampling) -> NoiseMatrix:
    """Return the matrix that the configured mechanism correlates noise by.

    Raises:
        ConfigError: more bands than rounds, or a sampler or clip without a proof beside it.
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
    clip = config.strategy.clip
    if clip.adaptive is not None or clip.schedule is not None:
        changes = "adaptive" if clip.adaptive is not None else "schedule"
        raise ConfigError(
            f"strategy.clip.{changes} with {named}: is proved for a clip that is the same in every "
            "round; leave one of them out"
        )
    if privacy.mechanism == "blt":
        if sampling.rate < 1.0:
            raise ConfigError(
                f"{named}: one's rounds overlap in it, so coins amplify nothing; leave "
                'strategy.cohort_size out for whole groups, or take mechanism = "banded"'
            )
        return buffered_matrix(rounds, sampling.groups, privacy.buffers or 3)
    bands = privacy.bands or sampling.groups
    if bands > sampling.groups:
        raise ConfigError(
            f"privacy.bands = {bands}: needs as many groups at least, and strategy.sampling.groups "
            f"= {sampling.groups}; give no more bands than groups"
        )
    return banded_matrix(rounds, bands)


def _check_true(holds: bool, kind: str, public: int, what: str) -> None:
    """Raise `ConfigError` unless a price that rests on the population's size has the true one."""
    if not holds:
        raise ConfigError(
            f"strategy.sampling.kind = {kind!r}: the price rests on a population of {public}, "
            f'but {what}; declare the true number, or take kind = "poisson"'
        )


def probability(expected: float | None, size: int, field: str, noun: str) -> float:
    """Return expected / size, or a `ConfigError` when it is missing or over 1."""
    if expected is None:
        raise ConfigError(f"{field}: missing; give the expected number of {noun} a round")
    if expected > size:
        raise ConfigError(
            f"{field} = {expected:g}: larger than the population of {size} {noun}; "
            f"give at most {size}"
        )
    return expected / size


def build_clip(config: ClipConfig, model: LanguageModel) -> Clip:
    """Return the clip that the config describes, over the layers of the model's parameters."""
    layers = layers_of(model.initial_parameters())
    clip: FlatClip | PerLayerClip
    if config.l2_clip_norms is not None:
        if wrong := set(layers) ^ config.l2_clip_norms.keys():
            raise ConfigError(
                f"strategy.clip.l2_clip_norms: {sorted(wrong)} missing or unknown; "
                f"the trainable layers are {layers}"
            )
        clip = PerLayerClip(l2_clip_norms=config.l2_clip_norms)
    elif config.l2_clip_norm is None:
        raise ConfigError("strategy.clip.l2_clip_norm: missing")
    elif config.kind == "per-layer":
        clip = PerLayerClip.evenly(config.l2_clip_norm, layers)
    else:
        clip = FlatClip(l2_clip_norm=config.l2_clip_norm)
    return NormalisedClip(clip=clip) if config.normalise else clip


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
        if not 0.0 < scale < math.inf:
            raise ConfigError(
                f"strategy.clip.schedule.final_l2_clip_norm = {schedule.final_l2_clip_norm:g}: "
                f"no float holds its ratio to the first round's, {clip.norm:g}"
            )
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
    if reason := policy.unproved(relation_of(config)):
        raise ConfigError(f"strategy.clip.adaptive: {reason}")
    with about("strategy.clip.adaptive."):
        policy.update_noise_multiplier(noise_multiplier)
    return policy


def noise_multiplier(config: Config, sampling: Sampling, units_per_user: int) -> float:
    """Return the configured noise multiplier, or the least that keeps the configured ε."""
    privacy = config.privacy
    if privacy.delta is None:
        raise ConfigError("privacy.delta: missing; a guarantee needs it, such as delta = 1e-5")
    with about("strategy.sampling: "):
        search = search_of(config)
        unit_noise = RoundCost(sampling, 1.0, units_per_user, search)
    scores = score_rounds(config) if search is None else ()
    score = RoundCost(PoissonSampling(1.0), _score_noise(config))
    beside = [(score, len(scores))] if scores else []
    # Also where no noise is to be calibrated: a wrong name must not be found after the first round.
    try:
        choose([unit_noise, *([score] if scores else [])], privacy.accountant, relation_of(config))
    except ConfigError as error:
        if not scores:
            raise
        raise ConfigError(
            f"training.private_evaluation beside the rounds: {error}; where no accountant knows "
            "both, leave it out or take Poisson sampling"
        ) from None
    if privacy.noise_multiplier is not None:
        return privacy.noise_multiplier
    if privacy.epsilon is None:
        raise ConfigError("privacy: give epsilon (with delta) or noise_multiplier")
    with about("privacy: "):
        return calibrate_noise_multiplier(
            sampling=sampling,
            units_per_user=units_per_user,
            rounds=config.strategy.rounds,
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            accountant=privacy.accountant,
            relation=relation_of(config),
            search=search,
            beside=beside,
        )


def user_task(config: StrategyConfig) -> TaskSpec:
    """Return the task of one user: averaged gradient or local SGD, as `strategy.local` says.

    Raises:
        ConfigError: a choice of texts that is for several owners alone.
    """
    refuse_unused(config, bounding=config.bounding)
    if config.selection == "least-demand":
        raise ConfigError(
            f'strategy.selection = "least-demand": not used by strategy {config.name!r}; take '
            '"random", or "els" for texts with several owners'
        )
    local = config.local.model_dump(exclude={"task"})
    options = {
        "group_size": config.group_size,
        "selection": config.selection,
        "user_weight_cap": config.user_weight_cap,
    }
    return TaskSpec(name=config.local.task, options={**options, **local})


def server_optimizer(config: Config) -> ServerOptimizer:
    """Return the server's optimizer."""
    server = config.server
    return ServerOptimizer(server.optimizer, server.learning_rate, server.max_gradient_norm)


_INSTEAD = {
    ("els", "cohort_size"): " and give strategy.batch_size, the examples of a round",
    ("group-privacy", "cohort_size"): " and give strategy.batch_size, the examples of a round",
    ("uls", "batch_size"): " and give strategy.cohort_size, the users of a round",
}


def refuse_unused(config: StrategyConfig, **unused: object) -> None:
    """Raise `ConfigError` if a key that this strategy has no use for was set."""
    for field, value in unused.items():
        if value is not None:
            raise ConfigError(
                f"strategy.{field} = {value!r}: not used by strategy {config.name!r}; remove it"
                f"{_INSTEAD.get((config.name, field), '')}"
            )

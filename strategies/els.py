"""Example-level sampling with a user-level guarantee (Charles et al. 2024, Algorithm 1)."""

from __future__ import annotations

from fedsim.config import Config
from fedsim.data.selection import pool
from fedsim.errors import ConfigError
from fedsim.estimators import FixedDenominator
from fedsim.evaluation.starting_losses import losses_for
from fedsim.materials import Materials
from fedsim.plan import RoundPlan, TaskSpec
from strategies.common import (
    assumptions,
    build_clip,
    clip_policy,
    neighbours,
    noise_multiplier,
    only,
    public_size,
    sampling,
    server_optimizer,
)


def build(config: Config, materials: Materials) -> RoundPlan:
    """Return the plan: coins on the pooled examples, each clipped; a user has group_size of them.

    One user moves Binomial(group_size, p) clipped examples in a round, which is what the
    mixture-of-Gaussians cost says (Theorem 1).

    Raises:
        ConfigError: batch_size missing or over the pool, a clipped denominator, local SGD, random
            chunks.
    """
    strategy = config.strategy
    only(
        strategy,
        cohort_size=strategy.cohort_size,
        user_weight_cap=strategy.user_weight_cap,
        concentration_radius=strategy.concentration_radius,
    )
    if strategy.estimator.kind != "fixed":
        raise ConfigError(
            f"strategy.estimator.kind = {strategy.estimator.kind!r}: {strategy.name} takes only "
            '"fixed"; nobody has proved a bound for the clipped denominator there'
        )
    if strategy.local.task != "fedsgd":
        raise ConfigError(
            f'strategy.local.task = {strategy.local.task!r}: {strategy.name} takes only "fedsgd"; '
            "one example has no local training"
        )
    if strategy.selection == "random-chunk":
        raise ConfigError(
            f'strategy.selection = "random-chunk": {strategy.name} pools whole examples; take '
            '"uls", or another selection'
        )
    examples, num_dropped = pool(
        materials.split,
        materials.store,
        group_size=strategy.group_size,
        rule=strategy.selection,
        seed=materials.seed,
        losses=losses_for(materials, strategy.selection),
    )
    size, sentence = public_size(
        config,
        config.privacy.declared_num_examples,
        len(examples),
        "privacy.declared_num_examples",
        "pooled examples",
    )
    sizes = (size, len(examples))
    law = sampling(config, strategy.batch_size, sizes, "strategy.batch_size", "pooled examples")
    clip = build_clip(strategy.clip, materials.model)
    noise = noise_multiplier(config, law, units_per_user=strategy.group_size)
    return RoundPlan(
        strategy=strategy.name,
        unit="example",
        pool=examples,
        sampling=law,
        task=TaskSpec(name="example-gradient"),
        clip=clip,
        clip_policy=clip_policy(config, clip, noise, law.probability * size),
        estimator=FixedDenominator(law.probability, size),
        noise_multiplier=noise,
        units_per_user=strategy.group_size,
        relation=neighbours(config),
        optimizer=server_optimizer(config),
        entropy=config.privacy.noise,
        assumptions=assumptions(law, sentence),
        dropped={"examples beyond a user's group_size": num_dropped},
        accountant=config.privacy.accountant,
    )

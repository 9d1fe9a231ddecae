"""Example-level sampling with a user-level guarantee (Charles et al. 2024, Algorithm 1)."""

from __future__ import annotations

import numpy as np

from fedsim.config import Config
from fedsim.data.selection import pool
from fedsim.errors import ConfigError
from fedsim.estimators import FixedDenominator
from fedsim.evaluation.starting_losses import losses_for
from fedsim.materials import Materials
from fedsim.plan import RoundPlan, TaskSpec
from fedsim.sampling import CyclicSampling
from fedsim.strategy import build_sampling, private_plan, public_size, refuse_unused


def build(config: Config, materials: Materials) -> RoundPlan:
    """Return the plan: coins on the pooled examples, each clipped; a user has group_size of them.

    One user moves Binomial(group_size, p) clipped examples in a round, which is what the
    mixture-of-Gaussians cost says (Theorem 1). Where texts have several owners the pool has at most
    group_size examples of each (`fedsim.data.bounding`), and the same holds for every owner.

    Raises:
        ConfigError: batch_size missing or over the pool, a clipped denominator, local SGD, random
            chunks.
    """
    strategy = config.strategy
    refuse_unused(
        strategy,
        cohort_size=strategy.cohort_size,
        user_weight_cap=strategy.user_weight_cap,
        concentration_radius=strategy.concentration_radius,
    )
    if strategy.estimator.kind != "fixed":
        raise ConfigError(
            f"strategy.estimator.kind = {strategy.estimator.kind!r}: {strategy.name} takes only "
            '"fixed"; the clipped denominator has no proved bound there'
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
    _check_owners(config)
    examples, dropped = pool(
        materials.split,
        materials.store,
        group_size=strategy.group_size,
        rule=strategy.selection,
        seed=materials.seed,
        losses=losses_for(materials, strategy.selection),
        bounding=strategy.bounding or "greedy",
    )
    declared, counted = config.privacy.declared_num_examples, len(examples)
    size, sentence = public_size(
        config, declared, counted, "privacy.declared_num_examples", "pooled examples"
    )
    sampling = build_sampling(
        config, strategy.batch_size, (size, counted), "strategy.batch_size", "pooled examples"
    )
    grouped = isinstance(sampling, CyclicSampling)
    users = np.searchsorted(materials.store.user_offsets, examples, side="right") - 1
    return private_plan(
        config,
        materials,
        unit="example",
        pool=examples,
        population=size,
        sampling=sampling,
        task=TaskSpec(name="example-gradient"),
        estimator=FixedDenominator(sampling.probability, size),
        units_per_user=strategy.group_size,
        owners=materials.store.user_keys[users] if grouped else None,
        assumptions=(*_public_graph(config), sentence),
        dropped=dropped,
    )


def _check_owners(config: Config) -> None:
    """Raise `ConfigError` where a choice of texts with several owners has no proof."""
    strategy = config.strategy
    if not config.data.co_owned:
        key = "selection" if strategy.selection == "least-demand" else "bounding"
        if key == "selection" or strategy.bounding is not None:
            raise ConfigError(
                f"strategy.{key} = {getattr(strategy, key)!r}: is for texts with several owners; "
                "give data.owners_column, or remove it"
            )
    elif strategy.selection in ("highest-perplexity", "lowest-perplexity"):
        raise ConfigError(
            f'strategy.selection = "{strategy.selection}": what one owner wrote would decide which '
            'texts of others are kept; take "random" or "least-demand"'
        )
    elif strategy.sampling.kind == "cyclic" and strategy.group_size > 1:
        raise ConfigError(
            'strategy.sampling.kind = "cyclic": keeps all texts of an owner in one group, which '
            'texts with several owners cannot be; take "poisson", or group_size = 1'
        )


def _public_graph(config: Config) -> tuple[str, ...]:
    """Return what a guarantee for every owner of a text rests on; () where each has one owner."""
    if not config.data.co_owned:
        return ()
    lengths = "their lengths, " if config.strategy.selection in ("longest", "shortest") else ""
    return (
        "The guarantee is for every owner of any text: for a user who wrote it, and for others "
        "whom the data name as its owners. Who owns which of the prepared texts, "
        f"{lengths}and how many examples each is cut into, is public and the same in both "
        "neighbours; exchanged for nothing is what all texts say that an owner co-owns.",
    )

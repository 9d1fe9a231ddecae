"""Example-level sampling with a user-level guarantee (Charles et al. 2024, Algorithm 1)."""

from __future__ import annotations

from typing import Literal, cast

import numpy as np

from fedsim.config import Config, FedSGD, StrategyConfig
from fedsim.data.selection import pool
from fedsim.errors import ConfigError
from fedsim.evaluation.score_cache import losses_for
from fedsim.materials import Materials
from fedsim.parts import build_estimator, build_sampling, public_size
from fedsim.plan import RoundPlan, TaskSpec
from fedsim.sampling import CyclicSampling
from fedsim.strategy import private_plan
from fedsim.utils.section import Positive

ExampleSelection = Literal[
    "random", "longest", "shortest", "highest-perplexity", "lowest-perplexity", "least-demand"
]


class ExampleStrategyConfig(StrategyConfig):
    """Keys of strategies whose units are examples."""

    selection: ExampleSelection = "random"
    local: FedSGD = FedSGD()
    batch_size: Positive | None = None
    """Expected number of examples per round."""
    bounding: Literal["greedy", "random", "linear-program"] | None = None
    """For texts with several owners: the rule that keeps at most `group_size` examples per owner,
    in the order of `selection`; by default "greedy"."""


class ExampleLevelSampling:
    """Sample and clip single examples of a pool with at most group_size examples per user."""

    options = ExampleStrategyConfig

    @staticmethod
    def build(config: Config, materials: Materials) -> RoundPlan:
        """Return the plan.

        One user contributes Binomial(group_size, p) clipped examples to a round; the
        mixture-of-Gaussians cost assumes this (Theorem 1). If texts have several owners, the pool
        has at most group_size examples per owner (`fedsim.data.bounding`), so the same holds for
        every owner.

        Raises:
            ConfigError: batch_size is missing or exceeds the pool, or the denominator is clipped.
        """
        strategy = cast(ExampleStrategyConfig, config.strategy)
        _check_owners(config, strategy)
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
        expected, sizes = strategy.batch_size, (size, counted)
        sampling = build_sampling(config, expected, sizes, "strategy.batch_size", "pooled examples")
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
            estimator=build_estimator(config, sampling, size),
            units_per_user=strategy.group_size,
            owners=materials.store.user_keys[users] if grouped else None,
            assumptions=(*_public_graph(config), sentence),
            dropped=dropped,
        )


def _check_owners(config: Config, strategy: ExampleStrategyConfig) -> None:
    """Raise `ConfigError` if the choice of examples has no proof for these owners."""
    if not config.data.co_owned:
        key = "selection" if strategy.selection == "least-demand" else "bounding"
        if key == "selection" or strategy.bounding is not None:
            raise ConfigError(
                f"strategy.{key} = {getattr(strategy, key)!r}: is for texts with several owners; "
                "give data.owners_column, or remove it"
            )
    elif strategy.selection in ("highest-perplexity", "lowest-perplexity"):
        raise ConfigError(
            f'strategy.selection = "{strategy.selection}": the text of one owner would decide '
            'which texts of others are kept; take "random" or "least-demand"'
        )


def _public_graph(config: Config) -> tuple[str, ...]:
    """Return the assumptions of a guarantee for owners; () if every text has one owner."""
    if not config.data.co_owned:
        return ()
    lengths = "their lengths, " if config.strategy.selection in ("longest", "shortest") else ""
    owners = "its user and the other owners that the data name"
    if config.data.users_from == config.data.owners_column:  # the data name no writer
        owners = "all owners that the data name"
    return (
        f"The guarantee is for every owner of any text: {owners}. The owners of each prepared "
        f"text, {lengths}and the number of examples that it is cut into are public. They are the "
        "same in the neighbour, where every text that one owner co-owns is blank.",
    )

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
    """For texts with several owners: how to choose examples so that no owner has more than
    `group_size`, in the order of `selection`; left out, "greedy"."""


class ExampleLevelSampling:
    """Coins on the pooled examples, each clipped; a user has at most group_size of them."""

    options = ExampleStrategyConfig

    @staticmethod
    def build(config: Config, materials: Materials) -> RoundPlan:
        """Return the plan.

        One user moves Binomial(group_size, p) clipped examples in a round, which is what the
        mixture-of-Gaussians cost says (Theorem 1). Where texts have several owners the pool has at
        most group_size examples of each (`fedsim.data.bounding`), and the same holds for every
        owner.

        Raises:
            ConfigError: batch_size missing or over the pool, a clipped denominator.
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
    """Raise `ConfigError` where a choice of texts with several owners has no proof."""
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


def _public_graph(config: Config) -> tuple[str, ...]:
    """Return what a guarantee for every owner of a text rests on; () where each has one owner."""
    if not config.data.co_owned:
        return ()
    lengths = "their lengths, " if config.strategy.selection in ("longest", "shortest") else ""
    writer = "for a user who wrote it, and for others "
    if config.data.users_from == config.data.owners_column:  # nobody is named as its writer
        writer = "for everybody "
    return (
        f"The guarantee is for every owner of any text: {writer}"
        "whom the data name as its owners. Who owns which of the prepared texts, "
        f"{lengths}and how many examples each is cut into, is public and the same in both "
        "neighbours; in the other, every text that one owner co-owns is blank.",
    )

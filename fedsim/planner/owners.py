"""Group sizes for texts with several owners: kept text and noise side by side, from public counts.

The graph of texts and owners is public under the relation of such texts, so counting the examples
that a group size K keeps is no query. Nothing here reads a text or computes a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.materials import Materials
from fedsim.plan import RoundPlan
from fedsim.planner.budget import at_budget, check_budget, largest_budget
from fedsim.planner.candidates import check_plannable
from fedsim.planner.variants import changed, tried
from fedsim.strategy import plan_terms

_NOTE = (
    "The kept examples are counted in the graph of texts and owners, which is public under this "
    'relation, and in an order by length where the selection is "longest" or "shortest"; '
    "nothing else of a text, and no gradient, was looked at. The clip norm is the config's."
)


@dataclass(frozen=True)
class GroupSize:
    """Kept text at one K, and the noise for the promise.

    Attributes:
        group_size: K, most kept examples of an owner.
        examples: kept.
        part: of all training examples.
        sampling_probability: of a kept example in a round.
        noise_multiplier: σ.
        noise_stddev: of a coordinate of the mean gradient, in the unit of the clip norm.
    """

    group_size: int
    examples: int
    part: float
    sampling_probability: float
    noise_multiplier: float
    noise_stddev: float


@dataclass(frozen=True, eq=False)
class OwnersPlan:
    """Group sizes at one promise and one compute, and the one that is recommended.

    Attributes:
        budget: B, expected gradients a round.
        owners: number of owners with a training example.
        sizes: K in powers of two, from the first that keeps enough text for the budget.
        config: to run: els at the recommended K.
        group_size: the recommended K.
        reason: one sentence.
        statement: the promise of that run.
        notes: the sources of these numbers.
    """

    budget: float
    owners: int
    sizes: tuple[GroupSize, ...]
    config: Config
    group_size: int
    reason: str
    statement: str
    notes: tuple[str, ...] = (_NOTE,)


def plan_owners(config: Config, materials: Materials, budget: float | None = None) -> OwnersPlan:
    """Weigh group sizes of els for texts with several owners.

    The median owner's number of training examples, up to the next power of two, is recommended, as
    Charles et al. 2024, App. H, take the median user's: a smaller K has less noise, a larger keeps
    more text.

    Args:
        config: of a run; strategy, group size and batch are planned.
        materials: of the config, with an owner graph.
        budget: B; None for the config's batch size.

    Raises:
        ConfigError: no ε and δ in the config, or a budget that no K meets.
    """
    check_plannable(config)
    graph, split = materials.store.graph, materials.split
    if graph is None:
        raise ConfigError(
            f"data.owners_column = {config.data.owners_column!r}: every text has one owner; plan "
            "without it"
        )
    wanted = config.strategy.expected_examples if budget is None else budget
    if wanted is None:
        raise ConfigError("strategy.batch_size = None: give it, or --budget")
    check_budget(wanted)
    degrees = graph.degrees(split.train_examples)
    degrees = degrees[degrees > 0]
    found: list[tuple[GroupSize, Config, RoundPlan]] = []
    for power in range(int(degrees.max() - 1).bit_length() + 1):
        strategy = {"name": "els", "group_size": 1 << power, "cohort_size": None, "estimator": None}
        els = changed(config, strategy=strategy)
        if largest_budget(els, materials) >= wanted:
            els = at_budget(els, materials, wanted)
            plan = tried(els, materials)
            found.append((_group_size(els, plan, len(split.train_examples)), els, plan))
    if not found:
        raise ConfigError(
            f"--budget = {wanted:g}: all {len(split.train_examples)} training examples together "
            "are fewer; give at most that"
        )
    median = int(np.quantile(degrees, 0.5, method="inverted_cdf"))
    chosen, els, plan = next((one for one in found if one[0].group_size >= median), found[-1])
    return OwnersPlan(
        budget=wanted,
        owners=len(degrees),
        sizes=tuple(size for size, _, _ in found),
        config=els,
        group_size=chosen.group_size,
        reason=(
            f"K = {chosen.group_size} keeps {chosen.part:.0%} of the text: the median owner has "
            f"{median} examples (Charles et al. 2024, App. H); a smaller K has less noise, a "
            "larger keeps more text."
        ),
        statement=plan_terms(els, plan, els.privacy.epsilon or 0.0, drawn=False).sentence(),
    )


def _group_size(config: Config, plan: RoundPlan, examples: int) -> GroupSize:
    norm = config.strategy.clip.l2_clip_norm or plan.clip.norm
    return GroupSize(
        group_size=config.strategy.group_size,
        examples=len(plan.pool),
        part=len(plan.pool) / examples,
        sampling_probability=plan.sampling.probability,
        noise_multiplier=plan.noise_multiplier,
        noise_stddev=plan.noise_stddev * norm / plan.clip.bound,
    )

"""Group sizes for texts with several owners: kept text and noise, from public counts.

The relation "fixed-graph" makes the graph of texts and owners public. So counting the examples
that a group size K keeps costs no privacy. This module reads no text and computes no gradient.
"""

from __future__ import annotations

from typing import Any

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
    'relation. With selection "longest" or "shortest" the order of their lengths counts as public '
    "too. The plan used no other property of the texts and no gradient. The clip norm is the "
    "config's."
)


def plan_owners(
    config: Config, materials: Materials, budget: float | None = None
) -> tuple[dict[str, Any], Config]:
    """Compare group sizes of els for texts with several owners, at the same ε, δ and compute.

    Recommends the median owner's number of training examples, rounded up to a power of two, like
    the median user's in Charles et al. 2024, App. H. A smaller K has less noise; a larger K keeps
    more text.

    Args:
        config: config of a run; the plan replaces strategy, group size and batch size.
        materials: materials of the config, with an owner graph.
        budget: B; None: the config's batch size.

    Returns:
        The JSON object of the plan, with a row for each power of two K, from the first that keeps
        enough text for the budget; and the config of els with the recommended K.

    Raises:
        ConfigError: the config has no ε and δ, or no K meets the budget.
    """
    check_plannable(config)
    graph, split = materials.store.graph, materials.split
    if graph is None:
        raise ConfigError(
            f"data.owners_column = {config.data.owners_column!r}: each text has one owner; remove "
            "data.owners_column"
        )
    wanted = config.strategy.expected_examples if budget is None else budget
    if wanted is None:
        raise ConfigError("strategy.batch_size = None: give it, or --budget")
    check_budget(wanted)
    degrees = graph.degrees(split.train_examples)
    degrees = degrees[degrees > 0]
    candidates: list[tuple[dict[str, Any], Config, RoundPlan]] = []
    for power in range(int(degrees.max() - 1).bit_length() + 1):
        strategy = {"name": "els", "group_size": 1 << power, "cohort_size": None, "estimator": None}
        els = changed(config, strategy=strategy)
        if largest_budget(els, materials) >= wanted:
            els = at_budget(els, materials, wanted)
            plan = tried(els, materials)
            candidates.append((_group_size(els, plan, len(split.train_examples)), els, plan))
    if not candidates:
        raise ConfigError(
            f"--budget = {wanted:g}: there are only {len(split.train_examples)} training examples; "
            "give at most that"
        )
    median = int(np.quantile(degrees, 0.5, method="inverted_cdf"))
    row, els, plan = next(
        (one for one in candidates if one[0]["group_size"] >= median), candidates[-1]
    )
    size = row["group_size"]
    reason = (
        f"K = {size} keeps {row['part']:.0%} of the text: the median owner has {median} examples "
        "(Charles et al. 2024, App. H); a smaller K has less noise, a larger K keeps more text."
    )
    answer = {
        "budget": wanted,
        "owners": len(degrees),
        "group_sizes": [one for one, _, _ in candidates],
        "recommendation": {"strategy": "els", "group_size": size, "reason": reason},
        "statement": plan_terms(els, plan, els.privacy.epsilon or 0.0, drawn=False).sentence(),
        "notes": [_NOTE],
    }
    return answer, els


def _group_size(config: Config, plan: RoundPlan, examples: int) -> dict[str, Any]:
    """Return the kept text at one K, and the noise of the mean gradient, in the clip's unit."""
    norm = config.strategy.clip.l2_clip_norm or plan.clip.norm
    return {
        "group_size": config.strategy.group_size,
        "examples": len(plan.pool),
        "part": len(plan.pool) / examples,
        "sampling_probability": plan.sampling.probability,
        "noise_multiplier": plan.noise_multiplier,
        "noise_stddev": plan.noise_stddev * norm / plan.clip.bound,
    }

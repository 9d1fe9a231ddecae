"""The answer of `fedsim plan`: a plan as JSON, with sentences that explain its numbers."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from fedsim.accounting.statement import finite_or_none
from fedsim.planner.candidates import Candidate
from fedsim.planner.compare_strategies import StrategyComparison
from fedsim.planner.config_file import CLIP_NORM, OWN_RATE
from fedsim.planner.mechanisms import mechanisms, recommended
from fedsim.strategy import plan_terms

NOT_PRIVATE = (
    "Not private: the plan computed gradient norms, and a learning rate if it chose one, on "
    "private data. The privacy guarantee does not protect them."
)
USER_SIZES = (
    "The numbers of users and of their examples were counted in the data and count as public, even "
    "if a number of users is declared: the plan's cohort or batch size, sampling probability and "
    "noise follow from them."
)


def of_data(comparison: StrategyComparison) -> dict[str, Any]:
    """Return the JSON object of a plan from a config and its data."""
    norms, sizes = comparison.norms, comparison.norms.materials.split.user_sizes
    alternatives, rate = mechanisms(comparison.uls), comparison.rate
    return {
        "budget": comparison.budget,
        "users": len(sizes),
        "max_size": int(sizes.max()),
        "gradient_norms": {
            "users": len(norms.users),
            "median": {str(size): norm for size, norm in sorted(norms.medians.items())},
        },
        "doublings": [
            {
                **asdict(step),
                "group_factor": finite_or_none(step.group_factor),
                "cohort_factor": finite_or_none(step.cohort_factor),
            }
            for step in comparison.doublings
        ],
        "strategies": {
            one.noise.strategy: _strategy(one) for one in (comparison.uls, comparison.els)
        },
        "recommendation": asdict(comparison.recommendation),
        "mechanisms": [asdict(each) for each in alternatives],
        "mechanism": recommended(alternatives) if alternatives else None,
        "learning_rate": None if rate is None else rate.value,
        "notes": [OWN_RATE if rate is None else rate.sentence, CLIP_NORM, NOT_PRIVATE, USER_SIZES],
    }


def _strategy(one: Candidate) -> dict[str, Any]:
    noise, config = one.noise, one.config
    size = "cohort_size" if noise.strategy == "uls" else "batch_size"
    epsilon = config.privacy.epsilon or math.inf  # never None: see `check_plannable`
    terms = plan_terms(config, one.plan, epsilon, drawn=False)
    return {
        "group_size": noise.group_size,
        size: noise.size,
        "noise_multiplier": noise.noise_multiplier,
        "l2_clip_norm": noise.l2_clip_norm,
        "noise_stddev": noise.stddev,
        **terms.to_json(),
        "epsilon": epsilon,
        "statement": terms.sentence(),
    }

"""A plan in words and as JSON: what `fedsim plan` says, the same from data and from numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fedsim.accounting.events import RoundCost
from fedsim.accounting.statement import PrivacyTerms, finite_or_none
from fedsim.planner.candidates import Candidate
from fedsim.planner.compare_strategies import StrategyComparison
from fedsim.planner.cost import MEMORY_NOTE, TIME_NOTE, cost
from fedsim.planner.doubling import Doubling
from fedsim.planner.mechanisms import mechanisms, recommended
from fedsim.planner.noise import Noise
from fedsim.planner.norms import NON_PRIVATE, USER_SIZES, PrivateNorms
from fedsim.planner.numbers import Numbers, Scenario
from fedsim.planner.owners import OwnersPlan
from fedsim.runner.summary import about_users
from fedsim.sampling import PoissonSampling
from fedsim.strategy import plan_terms

FROM_NUMBERS = (
    "From public numbers alone: every user is taken to have as many examples as a round asks for, "
    "lengths of gradients are in units of L_ELS, and sampling is Poisson under add-or-remove-one. "
    "A config and its data give the lengths, the signal and a config to run."
)


def sentences(comparison: StrategyComparison) -> tuple[str, ...]:
    """Return what a reader of the plan has to know about where its numbers come from."""
    norms, config = comparison.norms, comparison.config
    if not isinstance(norms, PrivateNorms):
        return NON_PRIVATE, USER_SIZES
    left, delta = config.privacy.epsilon or 0.0, config.privacy.delta or 0.0
    spent = norms.sentence(left, delta, comparison.chosen.plan.sampling.guaranteed)
    rests = about_users(config, norms.gradients.materials)
    return spent, *rests, f"{USER_SIZES} The signal, another query, was not computed."


def notes(comparison: StrategyComparison) -> tuple[str, ...]:
    """Return the sentences with what time and memory were made of."""
    return (*sentences(comparison), TIME_NOTE, MEMORY_NOTE)


def of_data(comparison: StrategyComparison) -> dict[str, Any]:
    """Return the JSON object of a plan from a config and its data."""
    norms = comparison.norms
    sizes = norms.gradients.materials.split.user_sizes
    private = isinstance(norms, PrivateNorms)
    weighed = mechanisms(comparison.uls)
    return {
        "budget": comparison.budget,
        "users": len(sizes),
        "max_size": int(sizes.max()),
        "num_parameters": norms.gradients.num_parameters,
        "gradient_norms": {
            "private": private,
            "users": None if private else len(norms.gradients.users),
            "median": {str(size): norm for size, norm in sorted(norms.asked.items())},
            "queries": [
                {"group_size": size, "epsilon": norms.epsilon_each, "delta": 0.0}
                for size in norms.group_sizes
            ]
            if isinstance(norms, PrivateNorms)
            else [],
            "epsilon": norms.epsilon if isinstance(norms, PrivateNorms) else None,
        },
        "doublings": _doublings(comparison.doublings),
        "strategies": {
            one.noise.strategy: _strategy(comparison, one) for one in comparison.candidates
        },
        "recommendation": asdict(comparison.recommendation),
        "mechanisms": [asdict(each) for each in weighed],
        "mechanism": recommended(weighed) if weighed else None,
        "notes": list(notes(comparison)),
    }


def of_owners(plan: OwnersPlan) -> dict[str, Any]:
    """Return the JSON object of a plan for texts with several owners."""
    return {
        "budget": plan.budget,
        "owners": plan.owners,
        "group_sizes": [asdict(one) for one in plan.sizes],
        "recommendation": {"strategy": "els", "group_size": plan.group_size, "reason": plan.reason},
        "statement": plan.statement,
        "notes": list(plan.notes),
    }


def of_numbers(numbers: Numbers, supposed: list[Scenario]) -> dict[str, Any]:
    """Return the JSON object of a plan from numbers."""
    return {
        "budget": numbers.budget,
        "users": numbers.users,
        "max_size": numbers.max_size,
        "cases": [
            {
                "gradient_diversity": one.gradient_diversity,
                "doublings": _doublings(one.doublings),
                "strategies": {
                    noise.strategy: _noise(noise) | _supposed_terms(numbers, noise)
                    for noise in (one.uls, one.els)
                },
                "recommendation": asdict(one.recommendation),
            }
            for one in supposed
        ],
        "notes": [FROM_NUMBERS],
    }


def _strategy(comparison: StrategyComparison, one: Candidate) -> dict[str, Any]:
    noise, d = one.noise, comparison.norms.gradients.num_parameters
    noise_norm = noise.stddev * d**0.5
    epsilon = one.config.privacy.epsilon or math.inf  # there is one: see `check_plannable`
    promised = plan_terms(one.config, one.plan, epsilon, drawn=False)
    signal = comparison.signals[noise.strategy]
    return (
        _noise(noise)
        | promised.to_json()
        | {
            "epsilon": epsilon,
            "statement": promised.sentence(),
            "noise_norm": noise_norm,
            "signal": signal,
            "signal_to_noise": None if signal is None else signal / noise_norm,
            "cost": asdict(cost(comparison, one)),
        }
    )


def _doublings(steps: Sequence[Doubling]) -> list[dict[str, Any]]:
    """Return the steps; null for a factor of what could not grow, which is infinite."""
    return [
        {
            **asdict(step),
            "group_factor": finite_or_none(step.group_factor),
            "cohort_factor": finite_or_none(step.cohort_factor),
        }
        for step in steps
    ]


def _noise(noise: Noise) -> dict[str, Any]:
    size = "cohort_size" if noise.strategy == "uls" else "batch_size"
    return {
        "group_size": noise.group_size,
        size: noise.size,
        "noise_multiplier": noise.noise_multiplier,
        "l2_clip_norm": noise.l2_clip_norm,
        "noise_stddev": noise.stddev,
        "noise_variance": noise.variance,
    }


def _supposed_terms(numbers: Numbers, noise: Noise) -> dict[str, Any]:
    by_user = noise.strategy == "uls"
    population = numbers.users * (1 if by_user else numbers.median_size)
    cost = RoundCost(
        PoissonSampling(noise.size / population),
        noise.noise_multiplier,
        1 if by_user else noise.group_size,
    )
    noun = "users" if by_user else "examples"
    terms = PrivacyTerms.of(
        cost, noun, rounds=numbers.rounds, delta=numbers.delta, epsilon=numbers.epsilon
    )
    return terms.to_json() | {"epsilon": numbers.epsilon, "statement": terms.sentence()}

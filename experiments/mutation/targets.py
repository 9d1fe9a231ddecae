"""Which files are mutated, and the tests that cover each: what fails fastest comes first."""

from __future__ import annotations

from collections.abc import Mapping

TARGETS: Mapping[str, tuple[str, ...]] = {
    "fedsim/clipping.py": (
        "tests/contracts/test_clips.py",
        "tests/privacy/test_sensitivity.py",
        "tests/unit/test_clip_policy.py",
        "tests/contracts/test_layer_rules.py",
    ),
    "fedsim/estimators.py": (
        "tests/privacy/test_sensitivity.py",
        "tests/unit/test_round.py",
        "tests/unit/test_plan.py",
        "tests/contracts/test_executors.py",
    ),
    "fedsim/noise.py": (
        "tests/unit/test_noise.py",
        "tests/privacy/test_released_noise.py",
    ),
    "fedsim/seeding.py": (
        "tests/unit/test_seeding.py",
        "tests/privacy/test_sampling.py",
    ),
    "fedsim/sampling.py": (
        "tests/privacy/test_sampling.py",
        "tests/unit/test_accounting_events.py",
        "tests/privacy/test_other_samplers.py",
        "tests/unit/test_truncated_poisson.py",
    ),
    "fedsim/plan.py": (
        "tests/unit/test_plan.py",
        "tests/unit/test_round.py",
        "tests/unit/test_clip_policy.py",
        "tests/privacy/test_released_noise.py",
    ),
    "fedsim/adaptive_clip.py": (
        "tests/unit/test_clip_policy.py",
        "tests/privacy/test_adaptive_clip.py",
    ),
    "fedsim/clip_policy.py": ("tests/unit/test_clip_policy.py", "tests/unit/test_round.py"),
    "fedsim/execution.py": (
        "tests/privacy/test_sensitivity.py",
        "tests/unit/test_round.py",
        "tests/contracts/test_executors.py",
        "tests/contracts/test_engines.py",
    ),
    "fedsim/round.py": (
        "tests/unit/test_round.py",
        "tests/unit/test_clip_policy.py",
        "tests/privacy/test_released_noise.py",
        "tests/privacy/test_pitfalls.py",
    ),
    "fedsim/accounting/budget.py": (
        "tests/unit/test_accounting_budget.py",
        "tests/unit/test_round.py",
    ),
    "fedsim/accounting/ledger.py": (
        "tests/unit/test_accounting_ledger.py",
        "tests/unit/test_round.py",
        "tests/unit/test_checkpoint.py",
    ),
}

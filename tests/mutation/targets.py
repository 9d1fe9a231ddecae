"""Which files are mutated, and the tests that cover each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Tests:
    """Files of tests: the quick ones judge every mutant, the others who survives those."""

    quick: tuple[str, ...]
    thorough: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Both, the quick ones first."""
        return self.quick + self.thorough


_CLIPS, _SENSITIVITY = "tests/contracts/test_clips.py", "tests/privacy/test_sensitivity.py"
_ROUND, _PLAN = "tests/unit/mechanism/test_round.py", "tests/unit/mechanism/test_plan.py"
_POLICY, _ADAPTIVE = (
    "tests/unit/mechanism/test_clip_policy.py",
    "tests/privacy/test_adaptive_clip.py",
)
_SAMPLING, _RELEASED = "tests/privacy/test_sampling.py", "tests/privacy/test_released_noise.py"
_EXECUTORS, _ENGINES = "tests/contracts/test_executors.py", "tests/contracts/test_engines.py"

TARGETS: Mapping[str, Tests] = {
    "fedsim/clipping.py": Tests(
        ("tests/unit/mechanism/test_clip_factors.py", _CLIPS, _SENSITIVITY), (_POLICY,)
    ),
    "fedsim/estimators.py": Tests(
        ("tests/unit/mechanism/test_estimators.py", _SENSITIVITY, _ROUND), (_PLAN, _EXECUTORS)
    ),
    "fedsim/noise.py": Tests(("tests/unit/mechanism/test_noise.py",), (_RELEASED,)),
    "fedsim/seeding.py": Tests(("tests/unit/mechanism/test_seeding.py",), (_SAMPLING,)),
    "fedsim/sampling.py": Tests(
        (
            _SAMPLING,
            "tests/unit/mechanism/test_samplers_described.py",
            "tests/unit/accounting/test_events.py",
        ),
        ("tests/privacy/test_other_samplers.py", "tests/unit/accounting/test_truncated_poisson.py"),
    ),
    "fedsim/plan.py": Tests(
        ("tests/unit/mechanism/test_plan_draws.py", _PLAN),
        (_ROUND, _POLICY, _RELEASED, "tests/privacy/test_concentration_filter.py"),
    ),
    "fedsim/clip_policy.py": Tests((_POLICY,), (_ADAPTIVE, _ROUND)),
    "fedsim/execution.py": Tests(
        ("tests/unit/mechanism/test_execution.py", _SENSITIVITY, _ROUND), (_EXECUTORS, _ENGINES)
    ),
    "fedsim/round.py": Tests((_ROUND,), (_POLICY, "tests/privacy/test_pitfalls.py", _RELEASED)),
    "fedsim/accounting/budget.py": Tests(("tests/unit/accounting/test_budget.py",), (_ROUND,)),
    "fedsim/accounting/ledger.py": Tests(
        ("tests/unit/accounting/test_ledger.py",), (_ROUND, "tests/unit/runner/test_checkpoint.py")
    ),
}

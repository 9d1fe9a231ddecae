"""fedsim: language-model training with user-level differential privacy, simulated right.

The names below are the public interface; everything else may move. They are loaded when first
used, so that `import fedsim` costs nothing.

Examples:
    >>> import fedsim
    >>> a_round = fedsim.RoundCost(fedsim.PoissonSampling(0.01), noise_multiplier=1.0)
    >>> spent = fedsim.epsilon(a_round, rounds=1000, delta=1e-6)  # of one user, add-or-remove-one
    >>> f"{spent:.3f}"
    '2.125'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsim.accounting.accountants import delta, epsilon
    from fedsim.accounting.budget import Budget
    from fedsim.accounting.calibration import calibrate_noise_multiplier
    from fedsim.accounting.events import RoundCost
    from fedsim.accounting.ledger import Ledger
    from fedsim.accounting.relations import Relation
    from fedsim.clipping import FlatClip, PerLayerClip, layer_of
    from fedsim.config import Config, ModelConfig, load_config, parse_config
    from fedsim.errors import BudgetSpentError, ConfigError
    from fedsim.estimators import FixedDenominator
    from fedsim.language_model import LanguageModel
    from fedsim.materials import Materials, load_materials
    from fedsim.plan import RoundPlan, TaskSpec
    from fedsim.report.schema import RoundMetrics, RunReport, load_metrics, load_report
    from fedsim.round import run_round
    from fedsim.runner.assembly import build_plan
    from fedsim.runner.launch import run
    from fedsim.runner.tracking import Tracker
    from fedsim.runner.training import train
    from fedsim.sampling import (
        FixedSizeSampling,
        PoissonSampling,
        ShuffledSampling,
        TruncatedPoissonSampling,
    )
    from fedsim.server_optimizer import ServerOptimizer
    from fedsim.state import ServerState
    from fedsim.sweep.compare import compare

_HOMES = {
    "Budget": "fedsim.accounting.budget",
    "BudgetSpentError": "fedsim.errors",
    "Config": "fedsim.config",
    "ConfigError": "fedsim.errors",
    "FixedDenominator": "fedsim.estimators",
    "FixedSizeSampling": "fedsim.sampling",
    "FlatClip": "fedsim.clipping",
    "LanguageModel": "fedsim.language_model",
    "Ledger": "fedsim.accounting.ledger",
    "Materials": "fedsim.materials",
    "ModelConfig": "fedsim.config",
    "PerLayerClip": "fedsim.clipping",
    "PoissonSampling": "fedsim.sampling",
    "Relation": "fedsim.accounting.relations",
    "RoundCost": "fedsim.accounting.events",
    "RoundMetrics": "fedsim.report.schema",
    "RoundPlan": "fedsim.plan",
    "RunReport": "fedsim.report.schema",
    "ServerOptimizer": "fedsim.server_optimizer",
    "ServerState": "fedsim.state",
    "ShuffledSampling": "fedsim.sampling",
    "TaskSpec": "fedsim.plan",
    "Tracker": "fedsim.runner.tracking",
    "TruncatedPoissonSampling": "fedsim.sampling",
    "build_plan": "fedsim.runner.assembly",
    "calibrate_noise_multiplier": "fedsim.accounting.calibration",
    "compare": "fedsim.sweep.compare",
    "delta": "fedsim.accounting.accountants",
    "epsilon": "fedsim.accounting.accountants",
    "layer_of": "fedsim.clipping",
    "load_config": "fedsim.config",
    "load_materials": "fedsim.materials",
    "load_metrics": "fedsim.report.schema",
    "load_report": "fedsim.report.schema",
    "parse_config": "fedsim.config",
    "run": "fedsim.runner.launch",
    "run_round": "fedsim.round",
    "train": "fedsim.runner.training",
}

__all__ = [
    "Budget",
    "BudgetSpentError",
    "Config",
    "ConfigError",
    "FixedDenominator",
    "FixedSizeSampling",
    "FlatClip",
    "LanguageModel",
    "Ledger",
    "Materials",
    "ModelConfig",
    "PerLayerClip",
    "PoissonSampling",
    "Relation",
    "RoundCost",
    "RoundMetrics",
    "RoundPlan",
    "RunReport",
    "ServerOptimizer",
    "ServerState",
    "ShuffledSampling",
    "TaskSpec",
    "Tracker",
    "TruncatedPoissonSampling",
    "build_plan",
    "calibrate_noise_multiplier",
    "compare",
    "delta",
    "epsilon",
    "layer_of",
    "load_config",
    "load_materials",
    "load_metrics",
    "load_report",
    "parse_config",
    "run",
    "run_round",
    "train",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Import a public name when it is first used."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fedsim' has no attribute {name!r}")

"""fedsim: language-model training with user-level differential privacy, simulated right.

The names below are the public interface; everything else may move. They are loaded when first
used, so that `import fedsim` costs nothing.

The modules beside this file are the mechanism of private training. Read them in this order:

round.py             one round: sample, sum, estimate, noise, charge the ledger, step
plan.py, state.py    what every round does, as one frozen value; what a round passes on
sampling.py          samplers and neighbouring relations
clipping.py          what one unit (a user in ULS, an example in ELS) can add
clip_policy.py       how the clip moves from round to round
estimators.py        denominators, and the sensitivity of the estimate
noise/               Gaussian noise, drawn and added
server_optimizer.py  the server's step
execution.py         interfaces between server and clients: Unit, Update, Task, Engine, Executor
seeding.py           random streams; release_seed.py: the seed of a run's streams
strategy.py          from a config to a plan: its sampler, clip and noise, for all strategies
materials.py         the model, texts and split of a run
language_model.py    the interface of a network; tensors.py: arithmetic on dictionaries of tensors
registry.py          plug-ins by name (entry points); errors.py: errors with an exit status

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
    from fedsim.clipping import FlatClip, NormalisedClip, PerLayerClip, layer_of
    from fedsim.config import Config, ModelConfig, load_config, parse_config
    from fedsim.errors import BudgetSpentError, ConfigError, DivergedError, HaltedError
    from fedsim.estimators import ClippedDenominator, FixedDenominator
    from fedsim.execution import Task, TaskSpec, Unit, Update
    from fedsim.language_model import LanguageModel
    from fedsim.materials import Materials, load_materials
    from fedsim.plan import RoundPlan
    from fedsim.report.schema import RoundMetrics, RunReport, load_metrics, load_report
    from fedsim.round import run_round
    from fedsim.runner.finished import Run
    from fedsim.runner.launch import run
    from fedsim.runner.training import train
    from fedsim.sampling import (
        FixedSizeSampling,
        PoissonSampling,
        Relation,
        ShuffledSampling,
        TruncatedPoissonSampling,
    )
    from fedsim.server_optimizer import ServerOptimizer
    from fedsim.state import ServerState
    from fedsim.strategy import build_plan, private_plan
    from fedsim.sweep.compare import compare
    from fedsim.trackers.tracking import Tracker

__all__ = [
    "Budget",
    "BudgetSpentError",
    "ClippedDenominator",
    "Config",
    "ConfigError",
    "DivergedError",
    "FixedDenominator",
    "FixedSizeSampling",
    "FlatClip",
    "HaltedError",
    "LanguageModel",
    "Ledger",
    "Materials",
    "ModelConfig",
    "NormalisedClip",
    "PerLayerClip",
    "PoissonSampling",
    "Relation",
    "RoundCost",
    "RoundMetrics",
    "RoundPlan",
    "Run",
    "RunReport",
    "ServerOptimizer",
    "ServerState",
    "ShuffledSampling",
    "Task",
    "TaskSpec",
    "Tracker",
    "TruncatedPoissonSampling",
    "Unit",
    "Update",
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
    "private_plan",
    "run",
    "run_round",
    "train",
]

_HOMES = {
    "fedsim.accounting.accountants": "delta epsilon",
    "fedsim.accounting.budget": "Budget",
    "fedsim.accounting.calibration": "calibrate_noise_multiplier",
    "fedsim.accounting.events": "RoundCost",
    "fedsim.accounting.ledger": "Ledger",
    "fedsim.clipping": "FlatClip NormalisedClip PerLayerClip layer_of",
    "fedsim.config": "Config ModelConfig load_config parse_config",
    "fedsim.errors": "BudgetSpentError ConfigError DivergedError HaltedError",
    "fedsim.estimators": "ClippedDenominator FixedDenominator",
    "fedsim.execution": "Task TaskSpec Unit Update",
    "fedsim.language_model": "LanguageModel",
    "fedsim.materials": "Materials load_materials",
    "fedsim.plan": "RoundPlan",
    "fedsim.report.schema": "RoundMetrics RunReport load_metrics load_report",
    "fedsim.round": "run_round",
    "fedsim.runner.finished": "Run",
    "fedsim.runner.launch": "run",
    "fedsim.trackers.tracking": "Tracker",
    "fedsim.runner.training": "train",
    "fedsim.sampling": "FixedSizeSampling PoissonSampling Relation ShuffledSampling "
    "TruncatedPoissonSampling",
    "fedsim.server_optimizer": "ServerOptimizer",
    "fedsim.state": "ServerState",
    "fedsim.strategy": "build_plan private_plan",
    "fedsim.sweep.compare": "compare",
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Import a public name when it is first used."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'fedsim' has no attribute {name!r}")

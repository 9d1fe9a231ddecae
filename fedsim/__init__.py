"""fedsim: simulate language-model training with user-level differential privacy.

The names below are the public interface; everything else may change. Each is imported at its first
use, so `import fedsim` is cheap.

The modules beside this file implement one private round. Read them in this order:

round.py             one round: sample, sum, estimate, noise, charge the ledger, step
plan.py, state.py    the frozen plan of every round; the state passed between rounds
sampling.py          samplers and neighbouring relations (accounting/ has their privacy cost)
clipping.py          clips: bound the update of one unit (a user in ULS, an example in ELS)
clip_policy.py       change the clip norm from round to round
estimators.py        denominators, and the sensitivity of the estimate
noise/               draw Gaussian noise and add it
server_optimizer.py  the server's step; server/: torch optimizers, rate schedule, weight average
execution.py         interfaces between server and clients: Unit, Update, Task, Engine, Executor
seeding.py           random streams: sampling coins and noise keys
strategy.py          build a plan from a config, for all strategies
parts.py             build the sampler, clip, noise, … that the config names (built in or plug-in)
materials.py         the model, texts and split of a run
language_model.py    the interface of a network; tensors.py: arithmetic on dictionaries of tensors
registry.py          plug-ins by name (entry points); errors.py: errors with an exit status

Folders, from input to output: config/ and data/; accounting/ (privacy cost); grids/ (where clients
run); evaluation/; runner/ (start or resume one run); sweep/ (many runs); report/ and trackers/;
planner/ (before training); attacks/ and audit/ (after training); cli/. Clients, strategies and
experiments are separate packages; fedsim loads them by entry points.

Examples:
    >>> import fedsim
    >>> a_round = fedsim.RoundCost(fedsim.PoissonSampling(0.01), noise_multiplier=1.0)
    >>> spent = fedsim.epsilon(a_round, rounds=1000, delta=1e-6)  # add-or-remove-one user
    >>> f"{spent:.3f}"
    '2.125'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsim.accounting.accountants import delta as delta
    from fedsim.accounting.accountants import epsilon as epsilon
    from fedsim.accounting.budget import Budget as Budget
    from fedsim.accounting.calibration import (
        calibrate_noise_multiplier as calibrate_noise_multiplier,
    )
    from fedsim.accounting.events import RoundCost as RoundCost
    from fedsim.accounting.ledger import Ledger as Ledger
    from fedsim.accounting.methods.accountant import Accountant as Accountant
    from fedsim.clipping import Clip as Clip
    from fedsim.clipping import FlatClip as FlatClip
    from fedsim.clipping import NormalisedClip as NormalisedClip
    from fedsim.clipping import PerLayerClip as PerLayerClip
    from fedsim.clipping import layer_of as layer_of
    from fedsim.config import ClipConfig as ClipConfig
    from fedsim.config import Config as Config
    from fedsim.config import EstimatorConfig as EstimatorConfig
    from fedsim.config import ModelConfig as ModelConfig
    from fedsim.config import PrivacyConfig as PrivacyConfig
    from fedsim.config import SamplingConfig as SamplingConfig
    from fedsim.config import ServerConfig as ServerConfig
    from fedsim.config import StrategyConfig as StrategyConfig
    from fedsim.config import load_config as load_config
    from fedsim.config import parse_config as parse_config
    from fedsim.errors import BudgetSpentError as BudgetSpentError
    from fedsim.errors import ConfigError as ConfigError
    from fedsim.errors import DivergedError as DivergedError
    from fedsim.errors import HaltedError as HaltedError
    from fedsim.estimators import ClippedDenominator as ClippedDenominator
    from fedsim.estimators import Estimator as Estimator
    from fedsim.estimators import FixedDenominator as FixedDenominator
    from fedsim.estimators import WeightedSum as WeightedSum
    from fedsim.execution import Accumulator as Accumulator
    from fedsim.execution import Executor as Executor
    from fedsim.execution import Task as Task
    from fedsim.execution import TaskSpec as TaskSpec
    from fedsim.execution import Unit as Unit
    from fedsim.execution import Update as Update
    from fedsim.language_model import LanguageModel as LanguageModel
    from fedsim.materials import Materials as Materials
    from fedsim.materials import load_materials as load_materials
    from fedsim.parts import build_estimator as build_estimator
    from fedsim.parts import build_sampling as build_sampling
    from fedsim.plan import RoundPlan as RoundPlan
    from fedsim.report.schema import RoundMetrics as RoundMetrics
    from fedsim.report.schema import RunReport as RunReport
    from fedsim.report.schema import load_metrics as load_metrics
    from fedsim.report.schema import load_report as load_report
    from fedsim.round import run_round as run_round
    from fedsim.runner.finished import Run as Run
    from fedsim.runner.launch import run as run
    from fedsim.runner.training import train as train
    from fedsim.sampling import FixedSizeSampling as FixedSizeSampling
    from fedsim.sampling import PoissonSampling as PoissonSampling
    from fedsim.sampling import Relation as Relation
    from fedsim.sampling import Sampling as Sampling
    from fedsim.sampling import ShuffledSampling as ShuffledSampling
    from fedsim.sampling import TruncatedPoissonSampling as TruncatedPoissonSampling
    from fedsim.sampling import Wanted as Wanted
    from fedsim.seeding import Coins as Coins
    from fedsim.server_optimizer import ServerOptimizer as ServerOptimizer
    from fedsim.state import ServerState as ServerState
    from fedsim.strategy import build_plan as build_plan
    from fedsim.strategy import private_plan as private_plan
    from fedsim.sweep.compare import compare as compare
    from fedsim.trackers.tracking import Tracker as Tracker

_HOMES = {
    "fedsim.accounting.accountants": "delta epsilon",
    "fedsim.accounting.budget": "Budget",
    "fedsim.accounting.calibration": "calibrate_noise_multiplier",
    "fedsim.accounting.events": "RoundCost",
    "fedsim.accounting.ledger": "Ledger",
    "fedsim.clipping": "Clip FlatClip NormalisedClip PerLayerClip layer_of",
    "fedsim.config": "ClipConfig Config EstimatorConfig ModelConfig PrivacyConfig SamplingConfig "
    "ServerConfig StrategyConfig load_config parse_config",
    "fedsim.errors": "BudgetSpentError ConfigError DivergedError HaltedError",
    "fedsim.estimators": "Estimator WeightedSum ClippedDenominator FixedDenominator",
    "fedsim.execution": "Accumulator Executor Task TaskSpec Unit Update",
    "fedsim.language_model": "LanguageModel",
    "fedsim.materials": "Materials load_materials",
    "fedsim.accounting.methods.accountant": "Accountant",
    "fedsim.parts": "build_estimator build_sampling",
    "fedsim.plan": "RoundPlan",
    "fedsim.report.schema": "RoundMetrics RunReport load_metrics load_report",
    "fedsim.round": "run_round",
    "fedsim.runner.finished": "Run",
    "fedsim.runner.launch": "run",
    "fedsim.trackers.tracking": "Tracker",
    "fedsim.runner.training": "train",
    "fedsim.sampling": "FixedSizeSampling PoissonSampling Relation Sampling ShuffledSampling "
    "TruncatedPoissonSampling Wanted",
    "fedsim.seeding": "Coins",
    "fedsim.server_optimizer": "ServerOptimizer",
    "fedsim.state": "ServerState",
    "fedsim.strategy": "build_plan private_plan",
    "fedsim.sweep.compare": "compare",
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = list(_MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Import a public name at its first use."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'fedsim' has no attribute {name!r}")

"""Config: every key of a run's TOML file, its type and default, and errors that help.

Start at `schema.py`. Imports `fedsim.utils`, and the clips and estimators that keys describe.
"""

from fedsim.config.schema import (
    Config,
    EstimatorConfig,
    ExecutorConfig,
    FedAvg,
    FedSGD,
    ModelConfig,
    Precision,
    PrivacyConfig,
    SamplingConfig,
    Selection,
    ServerConfig,
    SharedLedgerConfig,
    StrategyConfig,
    TrainingConfig,
    load_config,
    parse_config,
    with_settings,
)
from fedsim.data.config import DataConfig

__all__ = [
    "Config",
    "DataConfig",
    "EstimatorConfig",
    "ExecutorConfig",
    "FedAvg",
    "FedSGD",
    "ModelConfig",
    "Precision",
    "PrivacyConfig",
    "SamplingConfig",
    "Selection",
    "ServerConfig",
    "SharedLedgerConfig",
    "StrategyConfig",
    "TrainingConfig",
    "load_config",
    "parse_config",
    "with_settings",
]

"""Config: the keys of a run's TOML file, their types and defaults, and errors that help.

Start at `schema.py`; the keys of `[data]` are in `fedsim/data/config.py`, which it imports.
`tables.py` has the tables whose keys depend on the part that one of them names.
`experiments/config_page.py` writes docs/config.md from the keys' own docstrings.
"""

from fedsim.config.schema import (
    Attention,
    ClipConfig,
    Config,
    EstimatorConfig,
    ExecutorConfig,
    FedAvg,
    FedSGD,
    ModelConfig,
    Precision,
    PrivacyConfig,
    SamplingConfig,
    SelectionRule,
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
    "Attention",
    "ClipConfig",
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
    "SelectionRule",
    "ServerConfig",
    "SharedLedgerConfig",
    "StrategyConfig",
    "TrainingConfig",
    "load_config",
    "parse_config",
    "with_settings",
]

"""Config: the keys of a run's TOML file, their types and defaults, and clear errors.

Start at `schema.py`; the keys of `[data]` are in `fedsim/data/config.py`, which it imports.
`tables.py` defines tables in which one key names a part, and the part decides the other keys.
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
    Quantisation,
    SamplingConfig,
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
    "Quantisation",
    "SamplingConfig",
    "ServerConfig",
    "SharedLedgerConfig",
    "StrategyConfig",
    "TrainingConfig",
    "load_config",
    "parse_config",
    "with_settings",
]

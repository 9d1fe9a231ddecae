"""The small config on a network of one layer: for whole runs of which the network is no matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fedsim
from fedsim.config import Config
from fedsim.report.schema import load_report
from fedsim.runner.folder import RunFolder
from tests.conftest import small_config
from tests.helpers.tiny_world import LONGEST, write_model

EVERY_SERVER_OPTION: dict[str, Any] = {
    "optimizer": "adamw",
    "learning_rate": 0.01,
    "betas": (0.8, 0.95),
    "debias": True,
    "schedule": {"kind": "cosine", "warmup_rounds": 1, "final_share": 0.1},
    "average": {"kind": "tail", "start": 2},
}
"""A server whose step depends on all rounds before: momentum, schedule, average, debiasing."""


def light_config(source: Path, **sections: dict[str, Any]) -> Config:
    """Return the small config with the network, which lies beside the text; sections over it."""
    network = source.parent / "network"
    if not network.exists():
        write_model(network, 0)
    light: dict[str, dict[str, Any]] = {
        "data": {"sequence_length": LONGEST},
        "model": {"name_or_path": str(network), "pretraining_steps": None},
    }
    for name, section in sections.items():
        light[name] = light.get(name, {}) | section
    return small_config(source, **light)


def write_config(path: Path, source: Path, **sections: dict[str, Any]) -> Path:
    """Write the light config on `source`, with sections laid over it, and return where."""
    path.write_text(light_config(source, **sections).to_toml(), encoding="utf-8")
    return path


def check_going_on(config: Config, folder: RunFolder, lost: int) -> None:
    """Cut a finished run off before its last files of checkpoints; it ends as it did before."""
    whole, weights = load_report(folder.path).privacy, folder.model / "model.safetensors"
    bits = weights.read_bytes()
    for path in (folder.report, weights, *sorted(folder.checkpoints.iterdir())[-lost:]):
        path.unlink()
    fedsim.run(config, folder.path, resume=True)
    assert load_report(folder.path).privacy == whole
    assert weights.read_bytes() == bits

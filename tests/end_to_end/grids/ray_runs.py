"""Helpers of tests of whole runs: configs, plug-ins, and equal runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from fedsim.config import Config

LEAVINGS = [  # of Ray: its own log files open, its own processes to the end of this one
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def write_config(path: Path, config: Config, **executor: object) -> Path:
    """Write a config with another executor."""
    changed = config.executor.model_copy(update=executor)
    path.write_text(config.model_copy(update={"executor": changed}).to_toml(), encoding="utf-8")
    return path


def assert_same_run(left: Path, right: Path) -> None:
    """The model to the bit, and the ledger: every release charged once."""
    ours, theirs = (load_file(path / "model" / "model.safetensors") for path in (left, right))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert (left / "ledger.json").read_text() == (right / "ledger.json").read_text()
    assert (left / "metrics.jsonl").read_text() == (right / "metrics.jsonl").read_text()


def plugin(
    folder: Path, module: str, entry_points: Mapping[str, str], name: str = "faulty"
) -> Path:
    """Make an installed distribution of one module, as a third party would, and return its folder.

    Args:
        folder: to be put on PYTHONPATH.
        module: the source.
        entry_points: what it offers, "group name" to "module:object".
        name: of the module and of the distribution.
    """
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{name}.py").write_text(module, encoding="utf-8")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        f"[{key.split()[0]}]\n{key.split()[1]} = {value}" for key, value in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder

"""The Weights & Biases tracker, offline unless WANDB_MODE is set."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, cast

import wandb

from fedsim.config import Config
from fedsim.report.schema import RoundMetrics
from fedsim.trackers.tracking import scalars


class WeightsAndBiases:
    """A run of W&B; a resumed run becomes a new run with all rounds.

    It is offline unless WANDB_MODE is "online": losses on private text leave the machine only on
    request, such as by `wandb sync`. The project is WANDB_PROJECT, or "fedsim". It sends the config
    sections strategy, privacy and server. It does not record code, git state, packages, machine or
    console.
    """

    def __init__(self, run_dir: Path, config: Config, terms: str) -> None:
        self._folder = run_dir / "wandb"
        for earlier in self._folder.glob("offline-run-*"):
            shutil.rmtree(earlier)
        self._folder.mkdir(exist_ok=True)  # without it W&B writes to a temporary folder
        self._terms = terms
        shown = {"strategy", "server", "privacy"}
        self._run = wandb.init(
            dir=str(run_dir),
            project=os.environ.get("WANDB_PROJECT", "fedsim"),
            name=run_dir.resolve().name,
            mode=cast(Any, os.environ.get("WANDB_MODE", "offline")),  # W&B checks it
            notes=f"ε: {terms}" if terms else "no privacy guarantee",
            config=config.model_dump(mode="json", include=shown, exclude={"privacy": {"shared"}}),
            settings=wandb.Settings(
                console="off",
                silent=True,
                host="",
                x_save_requirements=False,
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
            ),
        )

    def on_round(self, line: RoundMetrics) -> None:
        """Log all numbers of the line, with the round as step."""
        self._run.log(dict(scalars(line, self._terms)), step=line.round)

    def close(self) -> None:
        """End the run, and delete W&B's own logs, which contain the folder's path."""
        self._run.finish()
        for logs in self._folder.glob("*run-*/logs"):
            shutil.rmtree(logs)
        for link in self._folder.glob("debug*.log"):
            link.unlink()

"""The Weights & Biases tracker, offline unless the environment says otherwise."""

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
    """A run of W&B; a resumed run is a new one with all its rounds.

    Offline unless WANDB_MODE says "online": losses on private text leave the machine only on
    request, with `wandb sync` for example. The project is WANDB_PROJECT, or "fedsim". Of the
    config, strategy, privacy and server are shown. Neither code, git state, packages, machine nor
    console is recorded.
    """

    def __init__(self, run_dir: Path, config: Config, terms: str) -> None:
        self._folder = run_dir / "wandb"
        for earlier in self._folder.glob("offline-run-*"):
            shutil.rmtree(earlier)
        self._folder.mkdir(exist_ok=True)  # else W&B writes to a temporary folder
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
        """Log every number of the line; its step is the round."""
        self._run.log(dict(scalars(line, self._terms)), step=line.round)

    def close(self) -> None:
        """End the run, and remove W&B's own logs, which hold the folder's path."""
        self._run.finish()
        for logs in self._folder.glob("*run-*/logs"):
            shutil.rmtree(logs)
        for link in self._folder.glob("debug*.log"):
            link.unlink()

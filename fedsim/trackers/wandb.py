"""The Weights & Biases tracker, offline unless the environment says otherwise."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import Any, cast

from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.report.schema import RoundMetrics
from fedsim.trackers.tracking import lines_behind, scalars, shown_run
from fedsim.utils.files import write_atomically

try:
    import wandb
except ModuleNotFoundError:
    raise ConfigError(
        "training.trackers = 'wandb': needs the package wandb; pip install 'fedsim-dp[wandb]'"
    ) from None


class WeightsAndBiases:
    """A `fedsim.trackers.tracking.Tracker`: a run of W&B with the tags of `scalars`.

    Offline unless WANDB_MODE says "online": losses on private text leave the machine only if asked
    to, with `wandb sync` for example. The project is WANDB_PROJECT, or "fedsim". Of the config,
    strategy, privacy and server are shown, but no path and no seed. Neither code, git state,
    packages, machine nor console is recorded. Offline files of a run that is taken up are
    written again; online its rounds go on where they were.
    """

    def __init__(self, run_dir: Path, config: Config, terms: str) -> None:
        self._folder = folder = run_dir / "wandb"
        folder.mkdir(exist_ok=True)
        for earlier in folder.glob("offline-run-*"):
            shutil.rmtree(earlier)
        kept = folder / "fedsim-id"
        if not kept.exists():
            write_atomically(kept, uuid.uuid4().hex)
        self._terms = terms
        shown = {"strategy", "server", "privacy"}
        self._run = wandb.init(
            dir=str(run_dir),
            project=os.environ.get("WANDB_PROJECT", "fedsim"),
            name=shown_run(run_dir),
            id=kept.read_text(encoding="utf-8"),
            resume="allow",
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
        for line in lines_behind(run_dir):
            self.on_round(line)

    def on_round(self, line: RoundMetrics) -> None:
        """Log every number of the line; its step is the round."""
        self._run.log(dict(scalars(line, self._terms)), step=line.round)

    def close(self) -> None:
        """Write what is waiting, end the run and remove W&B's own logs, which hold its path."""
        self._run.finish()
        for logs in self._folder.glob("*run-*/logs"):
            shutil.rmtree(logs)
        for link in self._folder.glob("debug*.log"):
            link.unlink()

"""The MLflow tracker: a database in the run folder, or the server that the environment names."""

from __future__ import annotations

import logging
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.report.schema import RoundMetrics
from fedsim.trackers.tracking import lines_behind, scalars, shown_run
from fedsim.utils.files import write_atomically

try:
    from mlflow import MlflowClient
    from mlflow.entities import Metric
    from mlflow.exceptions import MlflowException
except ModuleNotFoundError:
    raise ConfigError(
        "training.trackers = 'mlflow': needs the package mlflow-skinny; "
        "pip install 'fedsim-dp[mlflow]'"
    ) from None

_REFUSED = re.compile(r"[^/\w.\- :]+")  # by MLflow in a metric's name
_EXPERIMENT = "fedsim"


class MLflow:
    """A `fedsim.trackers.tracking.Tracker`: a run of MLflow with the tags of `scalars`.

    It goes to `mlflow/mlflow.db` (SQLite) in the run folder, or to MLFLOW_TRACKING_URI. MLflow
    refuses parentheses, "=" and "," in a name: "-" stands for them, and the tag `epsilon_terms`
    has ε's terms as they are. A run that is taken up is a new run of MLflow with all its rounds;
    the earlier one is deleted. Neither config nor text is sent.
    """

    def __init__(self, run_dir: Path, config: Config, terms: str) -> None:
        for name in ("mlflow", "alembic"):  # they tell of every table that they make
            logging.getLogger(name).setLevel(logging.WARNING)
        folder = run_dir / "mlflow"
        folder.mkdir(exist_ok=True)
        own = f"sqlite:///{(folder / 'mlflow.db').resolve()}"
        self._client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI", own))
        self._terms = terms
        found = self._client.get_experiment_by_name(_EXPERIMENT)
        experiment = found.experiment_id if found else self._client.create_experiment(_EXPERIMENT)
        kept = folder / "run-id"
        if kept.exists():
            with suppress(MlflowException):  # of another server, or removed there
                self._client.delete_run(kept.read_text(encoding="utf-8"))
        tags = {"strategy": config.strategy.name, "epsilon_terms": terms or "no guarantee"}
        run = self._client.create_run(experiment, run_name=shown_run(run_dir), tags=tags)
        self._id = run.info.run_id
        write_atomically(kept, self._id)
        for line in lines_behind(run_dir):
            self.on_round(line)

    def on_round(self, line: RoundMetrics) -> None:
        """Log every number of the line; its step is the round."""
        now = int(1000 * time.time())
        found = [
            Metric(_REFUSED.sub("-", name).strip("-"), value, now, line.round)
            for name, value in scalars(line, self._terms)
        ]
        self._client.log_batch(self._id, metrics=found)

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._id)

"""The MLflow tracker: it writes to a database in the run folder, or to a tracking server."""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric

from fedsim.config import Config
from fedsim.report.schema import RoundMetrics
from fedsim.trackers.tracking import scalars

_REFUSED = re.compile(r"[^/\w.\- :]+")  # characters that MLflow refuses in a metric's name


class MLflow:
    """A run in the MLflow experiment "fedsim"; a resumed run becomes a new run with all rounds.

    It writes to `mlflow/mlflow.db` (SQLite) in the run folder, or to MLFLOW_TRACKING_URI. MLflow
    refuses parentheses, "=" and "," in names, so "-" replaces them; the tag `epsilon_terms` has ε's
    terms in full. It sends neither config nor text.
    """

    def __init__(self, run_dir: Path, config: Config, terms: str) -> None:
        for name in ("mlflow", "alembic"):  # they log each table that they create
            logging.getLogger(name).setLevel(logging.WARNING)
        folder = run_dir / "mlflow"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        own = f"sqlite:///{(folder / 'mlflow.db').resolve()}"
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # MLflow's default: 4 minutes
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        self._client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI", own))
        self._terms = terms
        known = self._client.get_experiment_by_name("fedsim")
        experiment = known.experiment_id if known else self._client.create_experiment("fedsim")
        tags = {"strategy": config.strategy.name, "epsilon_terms": terms or "no guarantee"}
        run = self._client.create_run(experiment, run_name=run_dir.resolve().name, tags=tags)
        self._id = run.info.run_id

    def on_round(self, line: RoundMetrics) -> None:
        """Log all numbers of the line, with the round as step."""
        now = int(1000 * time.time())
        metrics = [
            Metric(_REFUSED.sub("-", name).strip("-"), value, now, line.round)
            for name, value in scalars(line, self._terms)
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._id)

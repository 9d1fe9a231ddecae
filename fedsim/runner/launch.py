"""Start a run from Python or the command line, on the grid of its config."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedsim.config import Config, ExecutorConfig
from fedsim.grids.executor import wait_for_nodes
from fedsim.grids.in_process import InProcessGrid
from fedsim.grids.ray_cluster import Share
from fedsim.grids.ray_grid import RayGrid
from fedsim.registry import resolve
from fedsim.runner.finished import Run
from fedsim.runner.given import with_given
from fedsim.runner.session import execute

_CLIENT_APP = "default"


def run(
    config: Config | Mapping[str, Any] | str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    resume: bool = False,
    data: object = None,
    model: object = None,
    tokenizer: object = None,
) -> Run:
    """Do a whole run, with the server in this process, and return the finished run.

    The log goes to standard error unless the program has set up logging.

    Args:
        config: path of a TOML file, its content as nested dictionaries, or a result of
            `load_config`.
        out: the run folder, absent or empty unless `resume`; by default a new folder in `runs/`.
        resume: continue the run in `out` from its last checkpoint.
        data: replaces `data.source`: a `datasets.Dataset`, a pandas frame, a list of dictionaries,
            or a partitioner of flwr-datasets (its partitions are the users). fedsim keeps a copy
            in its cache folder, beside the token store.
        model: replaces `model.name_or_path`: a network of transformers; fedsim keeps a copy.
        tokenizer: the tokenizer of `model`.

    Raises:
        ConfigError: invalid config or input; nothing was written.
        BudgetSpentError: the privacy budget ended first; model and report are written.
        HaltedError: the strategy ended the run; model and report are written.
        DivergedError: parameters or the held-out loss are not finite; the report is written.
    """
    if not isinstance(config, Config) or data is not None or model is not None:
        config = with_given(config, data, model, tokenizer)
    path = Path(out) if out is not None else _new_folder()
    with logs_on_standard_error(), open_grid(config.executor) as grid:
        return Run(execute(config, path, grid, resume=resume))


@contextmanager
def logs_on_standard_error() -> Iterator[None]:
    """Show fedsim's log on standard error, unless the program has set up logging."""
    ours = logging.getLogger("fedsim")
    if logging.root.handlers or ours.handlers or ours.level:
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.setLevel(logging.NOTSET)


def _new_folder() -> Path:
    numbered = (Path("runs") / f"run-{number:03d}" for number in count(1))
    return next(path for path in numbered if not path.exists())


@contextmanager
def open_grid(config: ExecutorConfig) -> Iterator[Grid]:
    """Yield the grid of the config; close it at the end of the block."""
    if config.grid == "in-process":
        yield InProcessGrid(resolve("client_apps", _CLIENT_APP, "executor.grid"))
        return
    share = Share(config.workers, config.cpus_per_worker, config.gpus_per_worker)
    with RayGrid(_CLIENT_APP, share, config.address) as grid:
        wait_for_nodes(grid, config.workers)
        yield grid

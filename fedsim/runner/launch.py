"""Start a run from Python or the command line, on the grid that its config names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr.serverapp import Grid

from fedsim.config import Config, ExecutorConfig
from fedsim.grids.executor import wait_for_nodes
from fedsim.grids.in_process import InProcessGrid
from fedsim.grids.ray_cluster import Share
from fedsim.grids.ray_grid import RayGrid
from fedsim.registry import resolve
from fedsim.runner.session import execute

_CLIENT_APP = "default"


def run(config: Config, out: Path | str, *, resume: bool = False) -> Path:
    """Carry out a run, its server in this process, and return its folder.

    Args:
        config: from `load_config` or `parse_config`.
        out: the run folder, absent or empty unless `resume`.
        resume: take up the run in `out` from its last checkpoint.

    Raises:
        ConfigError: config or input is wrong; nothing was written.
        BudgetSpentError: the privacy budget ended first; model and report are written.
    """
    with open_grid(config.executor) as grid:
        wait_for_nodes(grid, config.executor.workers)
        return execute(config, Path(out), grid, resume=resume)


@contextmanager
def open_grid(config: ExecutorConfig) -> Iterator[Grid]:
    """Yield the grid that a config names; it ends with the block."""
    if config.grid == "in-process":
        yield InProcessGrid(resolve("client_apps", _CLIENT_APP, "executor.grid"))
        return
    share = Share(config.workers, config.cpus_per_worker, config.gpus_per_worker)
    with RayGrid(_CLIENT_APP, share, config.address) as grid:
        yield grid

"""The Flower ServerApp of `flwr run`; its options come from `context.run_config`.

| key           | meaning                                                            |
|---------------|--------------------------------------------------------------------|
| `config`      | absolute path of the TOML config                                   |
| `folder`      | base of the config's relative paths and `out`; default: its folder |
| `out`         | the run folder; by default `runs/` and the name of the config file |
| `resume`      | whether to continue the run in that folder                         |
| `workers`     | nodes to wait for before the first round; 0: `executor.workers`    |
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsim.config import load_config
from fedsim.errors import ConfigError
from fedsim.grids.executor import wait_for_nodes
from fedsim.runner.launch import logs_on_standard_error
from fedsim.runner.session import execute
from fedsim.utils.machine import collect_garbage_rarely

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Do the run of the run config."""
    options = context.run_config
    if not options.get("config"):
        raise ConfigError("run config: give config, the path of a TOML file")
    path = Path(str(options["config"])).absolute()
    collect_garbage_rarely()  # Flower's process serves only this run
    config = load_config(path)
    with suppress(OSError):  # another machine may lack the caller's folder
        os.chdir(str(options.get("folder") or path.parent))
    out = Path(str(options.get("out") or Path("runs") / path.stem))
    with logs_on_standard_error():
        wait_for_nodes(grid, int(options.get("workers") or config.executor.workers))
        execute(config, out, grid, resume=bool(options.get("resume", False)))

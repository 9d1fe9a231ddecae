"""The Flower ServerApp: one app for every grid, told what to do by `context.run_config`.

| key           | meaning                                                            |
|---------------|--------------------------------------------------------------------|
| `config`      | path of the TOML config                                            |
| `config-toml` | the config itself as TOML text, instead of a path                  |
| `out`         | the run folder; by default `runs/` and the name of the config file |
| `resume`      | whether to take up the run in that folder                          |
| `workers`     | nodes to wait for before the first round; 0: `executor.workers`    |
"""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsim.config import load_config, parse_config
from fedsim.errors import ConfigError
from fedsim.grids.nodes import wait_for_nodes
from fedsim.runner.session import execute

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the run that the run config names."""
    options = context.run_config
    if text := options.get("config-toml"):
        config, stem = parse_config(tomllib.loads(str(text))), "run"
    elif path := options.get("config"):
        _show_progress()
        config, stem = load_config(Path(str(path))), Path(str(path)).stem
    else:
        raise ConfigError("run config: give config, the path of a TOML file")
    out = Path(str(options.get("out") or Path("runs") / stem))
    wait_for_nodes(grid, int(options.get("workers") or config.executor.workers))
    execute(config, out, grid, resume=bool(options.get("resume", False)))


def _show_progress() -> None:
    """Let fedsim's log lines through: in a process of Flower's nobody else has seen to that."""
    log = logging.getLogger("fedsim")
    if not log.hasHandlers():
        log.setLevel(logging.INFO)
        log.addHandler(logging.StreamHandler())

"""Start a run from Python or the command line: the ServerApp on an in-process grid."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

from fedsim.config import Config
from fedsim.grids.in_process import InProcessGrid
from fedsim.registry import resolve
from fedsim.server_app import app as server_app


def run(config: Config, out: Path | str, *, resume: bool = False) -> Path:
    """Carry out a run in this process and return its folder.

    Args:
        config: from `load_config` or `parse_config`.
        out: the run folder, absent or empty unless `resume`.
        resume: take up the run in `out` from its last checkpoint.

    Raises:
        ConfigError: config or input is wrong; nothing was written.
        BudgetSpentError: the privacy budget ended first; model and report are written.
    """
    client_app: ClientApp = resolve("client_apps", "default", "executor.grid")
    context = Context(
        run_id=1,
        node_id=1,
        node_config={},
        state=RecordDict(),
        run_config={"config-toml": config.to_toml(), "out": str(out), "resume": resume},
    )
    server_app(grid=InProcessGrid(client_app), context=context)
    return Path(out)

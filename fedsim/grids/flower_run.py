"""A run carried out by Flower itself: `flwr run`, watched to its real end."""

from __future__ import annotations

import math
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from fedsim.config import ExecutorConfig
from fedsim.errors import (
    BudgetSpentError,
    ConfigError,
    DivergedError,
    HaltedError,
    SharedBudgetSpentError,
)
from fedsim.grids.flower_command import FlowerCommand, FlowerCommandError, RunStatus
from fedsim.grids.ray_cluster import Share, import_ray, require_here
from fedsim.grids.superlink import simulation_superlink
from fedsim.registry import resolve

_APP = "default"
_POLL = 2.0  # seconds between two questions for the status
_DOUBTS = 5  # times that a SuperLink may give no answer before it counts as gone
_STOPPING = 20.0  # seconds for a run to end once it was told to
_LOG_TAIL = 2000  # lines of the log in which the run's own error is looked for
_SHOWN = 30  # lines of it that go into an error


class FlowerRunError(RuntimeError):
    """Flower ran the apps and the run failed; the message says why, with the log's end."""


@dataclass(frozen=True)
class FlowerRun:
    """What is to be run. Paths are made absolute: other processes read them.

    Attributes:
        config: path of the TOML; on a SuperLink, as the machine of the SuperLink sees it.
        out: the run folder, likewise.
        resume: whether to take up the run in `out`.
        workers: simulated SuperNodes, or those to wait for.
    """

    config: Path
    out: Path
    resume: bool
    workers: int

    def settings(self) -> dict[str, str | bool | int]:
        """Return the run config that `fedsim/runner/server_app.py` reads."""
        return {
            "config": str(self.config.absolute()),
            "out": str(self.out.absolute()),
            "resume": self.resume,
            "workers": self.workers,
        }


def run_simulated(run: FlowerRun, share: ExecutorConfig, show: Callable[[str], None]) -> None:
    """Carry out a run on Flower's simulation engine, a worker being a simulated SuperNode.

    Args:
        run: what to run.
        share: `cpus_per_worker`, taken as whole cores, and `gpus_per_worker`.
        show: is called with every line of the run's log.

    Raises:
        ConfigError: no ray, or less than the workers need; or what the ServerApp found wrong.
        BudgetSpentError: the budget ended first; model and report are written.
        FlowerRunError: anything else that ended the run.
    """
    import_ray()
    federation = _resources(run.workers, share)
    with _home() as home, simulation_superlink(home) as address:
        _carry_out(FlowerCommand(home, address), run, federation, show)


def run_on_superlink(run: FlowerRun, address: str, show: Callable[[str], None]) -> None:
    """Carry out a run on a SuperLink that is there, at host:port without TLS.

    Raises as `run_simulated`; `ConfigError` where no SuperLink answers at `address`.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"--superlink {address}: no SuperLink there: {error}; give host:port of one that runs"
        ) from None
    with _home() as home:
        _carry_out(FlowerCommand(home, address), run, {}, show)


def _resources(workers: int, share: ExecutorConfig) -> dict[str, int | float]:
    """Return the engine's options; it would hang where a worker does not fit."""
    require_here(Share(workers, share.cpus_per_worker, share.gpus_per_worker))
    cores = math.ceil(share.cpus_per_worker)  # Flower's option is a whole number
    options: dict[str, int | float] = {
        "num-supernodes": workers,
        "client-resources-num-cpus": cores,
        "init-args-num-cpus": workers * cores,  # so that each node has a process of its own
    }
    if share.gpus_per_worker:
        options["client-resources-num-gpus"] = float(share.gpus_per_worker)
    return options


@contextmanager
def _home() -> Iterator[Path]:
    # On the way out, a process that is about to end may still write: that is no error.
    with tempfile.TemporaryDirectory(prefix="fedsim-flower-", ignore_cleanup_errors=True) as path:
        yield Path(path)


def _carry_out(
    flower: FlowerCommand,
    run: FlowerRun,
    federation: dict[str, int | float],
    show: Callable[[str], None],
) -> None:
    app = files(resolve("flower_apps", _APP, "flower"))
    with as_file(app / "pyproject.toml") as file:
        run_id = flower.run(file.parent, run.settings(), federation)
    try:
        tail = _follow(flower, run_id, show)
        status = _end_of(flower, run_id)
    except BaseException:  # Ctrl-C above all: the run would go on without us
        _stop(flower, run_id)
        raise
    _raise_what_went_wrong(status, tail)


def _follow(flower: FlowerCommand, run_id: str, show: Callable[[str], None]) -> str:
    tail: deque[str] = deque(maxlen=_LOG_TAIL)
    for line in flower.log_lines(run_id):
        show(line)
        tail.append(line)
    return "\n".join(tail)


def _end_of(flower: FlowerCommand, run_id: str) -> RunStatus:
    """Wait for the run's end, which the log's end need not be: its connection can break."""
    doubts = 0
    while True:
        try:
            status = flower.status(run_id)
        except FlowerCommandError as error:
            doubts += 1
            if doubts == _DOUBTS:
                raise FlowerRunError(f"the SuperLink is gone, the run perhaps: {error}") from None
        else:
            doubts = 0
            if status.finished:
                return status
        time.sleep(_POLL)


def _stop(flower: FlowerCommand, run_id: str) -> None:
    """Stop a run and wait until it is over, so that nothing writes into its folder any more."""
    with suppress(FlowerCommandError):
        flower.stop(run_id)
        end = time.monotonic() + _STOPPING
        while not flower.status(run_id).finished and time.monotonic() < end:
            time.sleep(_POLL)


def _raise_what_went_wrong(status: RunStatus, log: str) -> None:
    """Raise the error that ended the ServerApp as what it was, as far as that can be told.

    Flower passes on an exception's words but not its type, which the traceback in the log has.
    """
    if status.completed:
        return
    _, _, words = status.details.partition(" failed with exception: ")
    own = (ConfigError, BudgetSpentError, SharedBudgetSpentError, HaltedError, DivergedError)
    for kind in own:
        if words and f"{kind.__module__}.{kind.__qualname__}: {words}" in log:
            raise kind(words)
    last = "\n".join(log.splitlines()[-_SHOWN:])
    raise FlowerRunError(
        f"the run {status.outcome or status.state}: {status.details or 'no reason given'}\n"
        f"The end of its log:\n{last or '(empty)'}"
    )

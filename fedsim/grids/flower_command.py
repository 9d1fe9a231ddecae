"""Flower's command line as functions, and what its answers mean (Flower 1.41).

The exit status of `flwr` says nothing about a run: 0 also where the run, or the command, failed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

_CONNECTION = "fedsim"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_COMMAND_LIMIT = 60.0  # seconds for a command that asks and goes, on a busy machine
_FINISHED = "finished"


class FlowerCommandError(RuntimeError):
    """`flwr` could not do what it was asked; the message is its own."""


@dataclass(frozen=True)
class RunStatus:
    """What a SuperLink says of a run.

    Attributes:
        state: "pending", "starting", "running" or "finished".
        outcome: of a finished run: "completed", "failed" or "stopped"; else "".
        details: why it failed, in the words of the process that ran the ServerApp; else "".
    """

    state: str
    outcome: str = ""
    details: str = ""

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen."""
        return self.state == _FINISHED

    @property
    def completed(self) -> bool:
        """Whether the ServerApp came to its end."""
        return self.finished and self.outcome == "completed"


def parse_status(answer: str) -> RunStatus:
    """Read the answer of `flwr ls --run-id ID --format json`.

    Raises:
        FlowerCommandError: it is an error, or does not tell of one run.
    """
    runs = _parse(answer).get("runs")
    if not isinstance(runs, list) or len(runs) != 1:
        raise FlowerCommandError(f"flwr ls: expected one run, got {runs!r}")
    state, _, outcome = str(runs[0]["status"]).partition(":")
    details = str(runs[0].get("status-details", ""))
    return RunStatus(state, outcome, "" if details == "N/A" else details)


def parse_run_id(answer: str) -> str:
    """Read the answer of `flwr run --format json`; errors as `parse_status`."""
    run_id = _parse(answer).get("run-id")
    if not run_id:
        raise FlowerCommandError(f"flwr run: no run was started: {answer.strip()}")
    return str(run_id)


def _parse(answer: str) -> dict[str, Any]:
    try:
        values = json.loads(answer)
    except json.JSONDecodeError:
        raise FlowerCommandError(f"flwr: {answer.strip() or 'no answer'}") from None
    if not isinstance(values, dict) or values.get("success") is not True:
        raise FlowerCommandError(f"flwr: {_complaint(values)}")
    return values


def _complaint(values: object) -> str:
    message = values.get("error-message") if isinstance(values, dict) else None
    return str(message or values)


def environment(home: Path) -> dict[str, str]:
    """Return what Flower's processes must find set before the first of them starts.

    Nothing phones home, nothing installs packages over those that are there, and sums of float32
    have the same bits in every process, which one thread gives unless the user set another number.
    """
    ours = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_ADDRESS": "local",  # else its engine attaches to whatever Ray runs on the host
        "PYTHONUNBUFFERED": "1",
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]),
    }
    return {"OMP_NUM_THREADS": "1", **os.environ, **ours}


def program(name: str, env: Mapping[str, str]) -> str:
    """Return the path of a program that comes with Flower: this environment's, if it has one."""
    path = shutil.which(name, path=env["PATH"])
    if path is None:
        raise FlowerCommandError(f"{name}: not found; is flwr installed in this environment?")
    return path


class FlowerCommand:
    """`flwr` for one SuperLink, with a home folder of its own instead of the user's.

    Args:
        home: an empty folder.
        address: host:port of the SuperLink, which speaks without TLS.
    """

    def __init__(self, home: Path, address: str) -> None:
        self._home = home
        self._env = environment(home)
        connection = {"address": address, "insecure": True}
        links = {"superlink": {"default": _CONNECTION, _CONNECTION: connection}}
        (home / "config.toml").write_text(tomli_w.dumps(links), encoding="utf-8")

    def run(self, app: Path, config: Mapping[str, Any], federation: Mapping[str, Any]) -> str:
        """Hand the app to the SuperLink, with its run config, and return the run's id."""
        settings = self._home / "run.toml"  # as a file, so that no path needs quoting
        settings.write_text(tomli_w.dumps(config), encoding="utf-8")
        options = [f"--federation-config={key}={value}" for key, value in federation.items()]
        return parse_run_id(
            self._answer("run", str(app), _CONNECTION, f"--run-config={settings}", *options)
        )

    def status(self, run_id: str) -> RunStatus:
        """Return the status of a run; `FlowerCommandError` where the SuperLink gives none."""
        return parse_status(self._answer("ls", _CONNECTION, f"--run-id={run_id}"))

    def stop(self, run_id: str) -> None:
        """End a run; one that is over already is left alone."""
        self._answer("stop", run_id, _CONNECTION)

    def log_lines(self, run_id: str) -> Iterator[str]:
        """Yield the log's lines as they come, until the run is over or the connection is."""
        command = [program("flwr", self._env), "log", run_id, _CONNECTION, "--stream"]
        with subprocess.Popen(  # noqa: S603
            command,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is ours to deal with
        ) as process:
            try:
                assert process.stdout is not None  # noqa: S101
                for line in process.stdout:
                    yield _COLOURS.sub("", line.rstrip("\n"))
            finally:
                process.kill()

    def _answer(self, *arguments: str) -> str:
        try:
            done = subprocess.run(  # noqa: S603
                [program("flwr", self._env), *arguments, "--format=json"],
                env=self._env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_COMMAND_LIMIT,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise FlowerCommandError(
                f"flwr {arguments[0]}: no answer within {_COMMAND_LIMIT:g} s"
            ) from None
        return done.stdout if done.stdout.strip() else done.stderr

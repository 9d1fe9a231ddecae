"""A SuperLink with Flower's simulation engine, on a port of its own, that ends with its user."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from fedsim.grids.flower_command import environment, program

_HOST = "127.0.0.1"
_START = 60.0  # seconds
_END = 10.0


@contextmanager
def simulation_superlink(home: Path) -> Iterator[str]:
    """Start a SuperLink that simulates its nodes; yield its host:port; end it, and it alone.

    `flwr run` itself would start one on a fixed port, detached, that keeps its first caller's
    environment for all later callers.

    Raises:
        RuntimeError: it did not start; the message has the end of its log.
    """
    address, log, env = f"{_HOST}:{_free_port()}", home / "superlink.log", environment(home)
    command = [
        program("flower-superlink", env),
        "--insecure",  # reachable from this machine only
        "--simulation",
        "--disable-runtime-dependency-installation",
        *("--isolation", "subprocess"),
        *("--host", _HOST),
        *("--port", address.rpartition(":")[2]),
    ]
    with log.open("wb") as sink:
        process = subprocess.Popen(  # noqa: S603
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_up(process, address, log)
        yield address
    finally:
        _end(process)


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_up(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    host, _, port = address.rpartition(":")
    end = time.monotonic() + _START
    while process.poll() is None and time.monotonic() < end:
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
            return  # it listens only when all of it has started
        time.sleep(0.2)
    last = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    raise RuntimeError(f"Flower's SuperLink did not start on {address}:\n{last}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the SuperLink; what it started watches it and ends too."""
    process.terminate()
    try:
        process.wait(_END)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

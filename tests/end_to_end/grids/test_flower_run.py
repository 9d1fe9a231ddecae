"""The same apps under Flower's own runtimes: the model of one process to the bit, the real status.

`fedsim flower` runs in this process; what it starts of Flower's are real ones.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

import fedsim
from fedsim.config import Config
from tests.helpers.commands import fedsim as fedsim_here
from tests.helpers.light import light_config

SCRIPTS = Path(sysconfig.get_path("scripts"))


@pytest.fixture(scope="module", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "OMP_NUM_THREADS": "1",
            "PATH": os.pathsep.join([str(SCRIPTS), os.environ["PATH"]]),
            "FLWR_HOME": str(tmp_path_factory.mktemp("flower-home")),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        }.items():
            patch.setenv(name, value)
        yield


def rounds_of(count: int, source: Path, shard_size: int, cohort_size: int = 6) -> Config:
    return light_config(
        source,
        strategy={"rounds": count, "cohort_size": cohort_size},
        executor={"shard_size": shard_size},
    )


def model_bytes(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def write(config: Config, folder: Path) -> Path:
    path = folder / "config.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    return path


def processes_of(home: str) -> list[str]:
    """Return the command lines of processes that name a folder in their environment (Linux)."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if home.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@pytest.fixture
def other_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Ray that was started on this machine, and does not answer."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as short:
        address = Path(short, "ray", "ray_current_cluster")
        address.parent.mkdir()
        address.write_text("127.0.0.1:1", encoding="utf-8")
        monkeypatch.setenv("RAY_TMPDIR", short)
        yield


@pytest.mark.usefixtures("other_ray")
def test_two_simulated_nodes_give_the_model_of_one_process(speeches: Path, tmp_path: Path) -> None:
    """Relative paths, a space in one of them, and nothing left running or lying about."""
    config = rounds_of(2, speeches, shard_size=2)
    write(config, tmp_path)
    expected = fedsim.run(config, tmp_path / "one").path
    command = ("flower", "config.toml", "--out", "of flower", "--workers", "2")
    done = fedsim_here(*command, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 simulated SuperNodes" in done.stderr
    assert "round 2 of 2, held-out loss" in done.stderr
    assert "gives every user (ε = " in done.stdout
    assert "of flower/report.html" in done.stdout
    assert model_bytes(tmp_path / "of flower") == model_bytes(expected)
    assert fedsim.load_report(tmp_path / "of flower").privacy.rounds == 2
    home = re.search(
        r"Successfully installed fedsim-app to (\S*/fedsim-flower-[^/]+)/", done.stderr
    )
    assert home
    assert not Path(home[1]).exists()
    end = time.monotonic() + 60.0  # Flower's children notice within seconds that it is gone
    while left := processes_of(home[1]):
        assert time.monotonic() < end, left
        time.sleep(0.5)


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def daemons(commands: list[list[str]], folder: Path) -> Iterator[None]:
    """Run programs in the background, and end each of them, and those alone."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands):
            with (folder / f"daemon-{number}").open("wb") as log:
                program = [str(SCRIPTS / command[0]), *command[1:]]
                started.append(
                    subprocess.Popen(program, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
                )
        yield
    finally:
        for process in reversed(started):
            process.terminate()
        for process in reversed(started):
            try:
                process.wait(20.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def superlink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A SuperLink and two SuperNodes on loopback, on ports of their own."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    link = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    node = ["flower-supernode", "--insecure", "--superlink", address, "--port"]
    nodes = [[*node, str(free_port())] for _ in range(2)]
    with daemons([link, *nodes], tmp_path_factory.mktemp("logs")):
        end = time.monotonic() + 60.0
        while time.monotonic() < end:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
                break
            time.sleep(0.2)
        yield address


def test_two_supernodes_give_the_model_of_one_process(
    superlink: str, speeches: Path, tmp_path: Path
) -> None:
    """One round of two shards or so, each a new process, of a text that is beside the config."""
    shutil.copy(speeches, tmp_path)
    config = rounds_of(1, speeches, shard_size=5)
    path = write(config, tmp_path)
    path.write_text(path.read_text("utf-8").replace(str(speeches), speeches.name), "utf-8")
    expected = fedsim.run(config, tmp_path / "one").path
    command = ("flower", "config.toml", "--out", "two", "--workers", "2", "--superlink", superlink)
    done = fedsim_here(*command, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "gives every user (ε = " in done.stdout
    assert model_bytes(tmp_path / "two") == model_bytes(expected)


def test_wrong_input_has_its_own_status(superlink: str, speeches: Path, tmp_path: Path) -> None:
    """Also what only the ServerApp can find wrong."""
    link = ["--superlink", superlink]
    write(rounds_of(2, speeches, shard_size=1, cohort_size=500), tmp_path)
    done = fedsim_here("flower", "config.toml", "--out", "wrong", *link, folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Error: strategy.cohort_size = 500: larger than the population" in done.stderr
    assert not (tmp_path / "wrong").exists()

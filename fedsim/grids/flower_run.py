"""`fedsim flower`: start a SuperLink, submit the app with `flwr run`, and wait for its end."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import tomli_w

from fedsim import errors
from fedsim.config import ExecutorConfig
from fedsim.grids.ray_cluster import Share, import_ray, require_here
from fedsim.registry import resolve

_LINK = "fedsim"  # name of the SuperLink in Flower's config
_PATIENCE = 120.0  # seconds for a SuperLink to listen, on a busy machine
_POLL = 2.0  # seconds between two questions for the status
_TAIL = 30  # lines of the log in an error


class FlowerRunError(RuntimeError):
    """Flower could not carry out the run; the message says why."""


def run_on_flower(
    settings: dict[str, Any], share: ExecutorConfig, superlink: str, show: Callable[[str], None]
) -> None:
    """Carry out a run by `flwr run`, and return when it is completed.

    Args:
        settings: the run config that `fedsim/runner/server_app.py` reads, paths absolute.
        share: cores (rounded up) and GPUs of a simulated SuperNode.
        superlink: host:port of a SuperLink without TLS; "" starts one that simulates
            `settings["workers"]` SuperNodes, and ends it afterwards.
        show: called with every line of the run's log.

    Raises:
        ConfigError: no ray, too few resources for the workers, or the ServerApp's own error.
        BudgetSpentError: the budget ended first; model and report are written.
        FlowerRunError: the run failed otherwise.
    """
    with tempfile.TemporaryDirectory(prefix="fedsim-flower-", ignore_cleanup_errors=True) as home:
        env = environment(home)
        if superlink:
            _carry_out(env, settings, superlink, {}, show)
            return
        import_ray()
        workers, cores = settings["workers"], math.ceil(share.cpus_per_worker)
        require_here(Share(workers, share.cpus_per_worker, share.gpus_per_worker))
        simulated: dict[str, float] = {
            "num-supernodes": workers,
            "client-resources-num-cpus": cores,
            "init-args-num-cpus": workers * cores,  # so that each node is a separate process
        }
        if share.gpus_per_worker:
            simulated["client-resources-num-gpus"] = float(share.gpus_per_worker)
        with _superlink(env) as address:
            _carry_out(env, settings, address, simulated, show)


def environment(home: str) -> dict[str, str]:
    """Return environment variables for Flower's processes, with `home` as home folder."""
    return {
        "OMP_NUM_THREADS": "1",  # float32 sums then have the same bits in every process
        **os.environ,
        "FLWR_HOME": home,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_ADDRESS": "",  # a separate Ray: see `flower_client.py`
        "PYTHONUNBUFFERED": "1",
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]),
    }


@contextmanager
def _superlink(env: dict[str, str]) -> Iterator[str]:
    """Start a SuperLink with the simulation engine; yield its host:port; end it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    log = Path(env["FLWR_HOME"], "superlink.log")
    options = ["--insecure", "--simulation", "--isolation", "subprocess", "--host", "127.0.0.1"]
    with log.open("wb") as sink:
        process = _start(env, "flower-superlink", *options, "--port", port, stdout=sink)
    try:
        end = time.monotonic() + _PATIENCE
        while not _listens("127.0.0.1", int(port)):
            if process.poll() is not None or time.monotonic() > end:
                raise FlowerRunError(f"no SuperLink: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()  # the processes that it started end with it
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _listens(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=1.0):
        return True
    return False


def _carry_out(
    env: dict[str, str],
    settings: dict[str, Any],
    address: str,
    federation: dict[str, Any],
    show: Callable[[str], None],
) -> None:
    """Submit the run, show its log, and wait for its end; Ctrl-C stops it."""
    home = Path(env["FLWR_HOME"])
    links = {"superlink": {"default": _LINK, _LINK: {"address": address, "insecure": True}}}
    (home / "config.toml").write_text(tomli_w.dumps(links), encoding="utf-8")
    (home / "run.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")
    options = [f"--federation-config={key}={value}" for key, value in federation.items()]
    with as_file(files(resolve("flower_apps", "default", "flower")) / "pyproject.toml") as file:
        run = ("run", str(file.parent), _LINK, f"--run-config={home / 'run.toml'}", *options)
        run_id = str(_ask(env, *run)["run-id"])
    try:
        lines = []
        with _start(env, "flwr", "log", run_id, _LINK, "--stream", stdout=-1) as log:
            for line in log.stdout or ():
                lines.append(line.decode(errors="replace").rstrip())
                show(lines[-1])
        status = _end_of(env, run_id)
    except BaseException:  # Ctrl-C too: the run would go on
        with suppress(FlowerRunError):
            _ask(env, "stop", run_id, _LINK)
            _end_of(env, run_id)
        raise
    if status["status"] != "finished:completed":
        raise _error(status["status-details"], "\n".join(lines))


def _end_of(env: dict[str, str], run_id: str) -> dict[str, str]:
    """Wait until the run has ended, which may be later than its log; return its status."""
    while True:
        (run,) = _ask(env, "ls", _LINK, f"--run-id={run_id}")["runs"]
        if run["status"].startswith("finished"):
            return dict(run)
        time.sleep(_POLL)


def _ask(env: dict[str, str], *arguments: str) -> dict[str, Any]:
    """Return the JSON output of a `flwr` command; its exit status is unreliable."""
    with _start(env, "flwr", *arguments, "--format=json", stdout=-1) as process:
        out, _ = process.communicate()
    try:
        answer = dict(json.loads(out))
    except ValueError:
        text = out.decode(errors="replace")
        raise FlowerRunError(f"flwr {arguments[0]}: the answer is not JSON: {text}") from None
    if not answer.get("success"):
        raise FlowerRunError(f"flwr {arguments[0]}: {answer.get('error-message', answer)}")
    return answer


def _start(env: dict[str, str], name: str, *options: str, stdout: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
    program = shutil.which(name, path=env["PATH"])
    if program is None:
        raise FlowerRunError(f"{name}: not found; is flwr installed in this environment?")
    return subprocess.Popen(  # noqa: S603
        [program, *options],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT if name == "flower-superlink" else subprocess.DEVNULL,
        start_new_session=True,  # only `_carry_out` handles Ctrl-C
    )


def _error(details: str, log: str) -> Exception:
    """Return the ServerApp's error: Flower's answer has its message, the log its type."""
    _, _, words = details.partition(" failed with exception: ")
    kind = re.search(rf"fedsim\.errors\.(\w+): {re.escape(words)}", log) if words else None
    if kind:
        error: Exception = getattr(errors, kind[1])(words)
        return error
    last = "\n".join(log.splitlines()[-_TAIL:])
    return FlowerRunError(f"the run failed: {details}\nThe end of its log:\n{last or '(empty)'}")

"""Start Ray on this machine, or attach to the cluster at the configured address."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from fedsim.errors import ConfigError, about

# Set before ray is imported; otherwise it reports usage and warns about coming changes.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


@dataclass(frozen=True)
class Share:
    """The number of workers and the resources of each.

    Attributes:
        workers: number of processes.
        cpus: cores per worker, may be a fraction.
        gpus: GPUs per worker, may be a fraction: 0.25 puts four workers on one GPU.
    """

    workers: int
    cpus: float
    gpus: float


def connect(address: str) -> None:
    """Attach to the cluster at `address`, or start a local one for "".

    The address is always explicit: plain `ray.init()` attaches to any Ray on this machine, or to
    the address in an environment variable.

    Raises:
        ConfigError: ray is not installed, there is no cluster at the address, or none could be
            started here.
    """
    ray = import_ray()
    if ray.is_initialized():
        raise ConfigError(
            'executor.grid = "ray": this process is connected to a Ray cluster already; '
            "disconnect with ray.shutdown() first"
        )
    _reach(address)
    # Ray's processes inherit the variable, and would look for that cluster.
    elsewhere = os.environ.pop("RAY_ADDRESS", None)
    on_term = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address or "local",
            include_dashboard=False if not address else None,
            log_to_driver=False,
            logging_level="ERROR",
            namespace="fedsim",
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"executor.address = {address!r}: no Ray cluster: {error}") from None
    finally:
        if elsewhere is not None:
            os.environ["RAY_ADDRESS"] = elsewhere
        if (
            signal.getsignal(signal.SIGTERM) is not on_term
        ):  # Ray's own handler would end a run at once
            signal.signal(signal.SIGTERM, on_term)


def _reach(address: str) -> None:
    """Raise `ConfigError` if host:port does not answer: Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdigit()) or "://" in address:
        return
    with about(f"executor.address = {address!r}: no Ray cluster there: ", (OSError,)):
        socket.create_connection((host, int(port)), timeout=5.0).close()


def require(share: Share) -> None:
    """Raise `ConfigError` if the cluster has too few resources for all workers."""
    _compare(share, import_ray().cluster_resources(), "the cluster")


def require_here(share: Share) -> None:
    """Check this machine as `require` does, without starting Ray, which takes seconds."""
    gpus = torch.cuda.device_count() if share.gpus else 0
    _compare(share, {"CPU": os.cpu_count() or 1, "GPU": gpus}, "this machine")


def _compare(share: Share, there: Mapping[str, float], place: str) -> None:
    for field, kind, each in (
        ("cpus_per_worker", "CPU", share.cpus),
        ("gpus_per_worker", "GPU", share.gpus),
    ):
        asked, available = share.workers * each, float(there.get(kind, 0.0))
        if asked > available + 1e-9:
            raise ConfigError(
                f"executor.workers = {share.workers}, executor.{field} = {each:g}: needs "
                f"{asked:g} {kind}s, {place} has {available:g}; ask for fewer workers or "
                "smaller shares"
            )


def import_ray() -> Any:  # noqa: ANN401  (a module that is imported when it is needed)
    """Return the ray module.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return import_module("ray")
    except ImportError:
        raise ConfigError(
            'executor.grid = "ray": ray is not installed; install fedsim with its extra "ray"'
        ) from None

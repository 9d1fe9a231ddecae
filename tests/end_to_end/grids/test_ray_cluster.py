"""A cluster that is named by its address: full, shared, or not there; and a machine too small.

One process asks all of it, one thing after the other: Ray takes seconds to start.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.errors import ConfigError
from fedsim.grids.ray_cluster import Share
from fedsim.grids.ray_grid import RayGrid
from tests.end_to_end.grids.test_ray import run_alone

TOO_MUCH = """
import ray
from fedsim.errors import ConfigError
from fedsim.grids.ray_cluster import Share
from fedsim.grids.ray_grid import RayGrid
for share in (Share(workers=9999, cpus=1.0, gpus=0.0), Share(workers=1, cpus=1.0, gpus=64.0)):
    try:
        RayGrid("default", share)
    except ConfigError as error:
        print(error, ray.is_initialized())
"""

START = """
import os
from fedsim.config import ExecutorConfig
from fedsim.materials import worker_device
from ray.cluster_utils import Cluster
head = {"num_cpus": 1, "num_gpus": 1, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=head)
"""

SHARED_GPU = """
ray.shutdown()
config = ExecutorConfig(grid="ray", workers=2, cpus_per_worker=0.5, gpus_per_worker=0.5)
for address, gpus in ((cluster.address, 0.5), (cluster.address, 0.6)):
    try:
        with RayGrid("default", Share(2, 0.5, gpus), address) as grid:
            seen = [
                worker.__ray_call__.remote(lambda self: os.environ["CUDA_VISIBLE_DEVICES"])
                for worker in grid._workers
            ]
            print("GPUs", ray.get(seen), worker_device(config, of_server="cpu"))
    except ConfigError as error:
        print(error)
"""

SWEEP = """
import sys
from pathlib import Path
from tests.conftest import small_config
from fedsim.sweep import ray as ray_sweep
from fedsim.sweep.jobs import Job, Outcome

def die(job, folder):
    if job.name == "dies":
        with job.out.open("a") as file:
            file.write("x")
        os._exit(9)
    return Outcome(job.name, "finished")

def job(name, **executor):
    return Job(name, small_config(Path("none.jsonl"), executor=executor), Path(TRIES))

there = ray_sweep.OnRay(cluster.address)
try:
    next(there([job("one", cpus_per_worker=9999)]))
except ConfigError as error:
    print(error)
ray_sweep._attempt_in, ray_sweep._RETRIES = die, 1
for outcome in there([job(name, cpus_per_worker=0.5) for name in ("dies", "lives")]):
    # In one piece: Ray prints words of its own from another thread.
    print(f"\\n{outcome.name} {outcome.ending} {outcome.reason}\\n", end="")
"""

NEXT = "\n--\n"


@pytest.fixture(scope="module")
def tries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweep") / "tries"


@pytest.fixture(scope="module")
def said(tries: Path) -> list[str]:
    """What the process says of each."""
    parts = [TOO_MUCH, START + SHARED_GPU, f"TRIES = {str(tries)!r}" + SWEEP]
    return run_alone(f"print({NEXT!r}, end='')\n".join(parts)).split(NEXT)


def test_too_few_resources_are_named_before_ray_is_started(said: list[str]) -> None:
    cpus, gpus = said[0].splitlines()
    assert "needs 9999 CPUs, this machine has" in cpus
    assert "needs 64 GPUs, this machine has" in gpus
    assert cpus.endswith(" False")
    assert gpus.endswith(" False")


def test_two_workers_share_a_gpu_that_ray_assigned(said: list[str]) -> None:
    """A GPU that Ray believes in is enough: what is tested is who is given which."""
    assert "GPUs ['0', '0'] cuda" in said[1]
    assert "gpus_per_worker = 0.6: needs 1.2 GPUs, the cluster has 1" in said[1]


def test_too_much_asked_for_and_a_process_that_dies_every_time(
    said: list[str], tries: Path
) -> None:
    """Of a sweep's runs: one is refused before any begins, one fails after a new start."""
    first, *rest = said[2].splitlines()
    assert "needs 9999 CPUs, the cluster has" in first
    assert "lives finished " in rest
    assert any(line.startswith("dies failed stopped after 1 retries") for line in rest), rest
    assert tries.read_text(encoding="utf-8") == "xx"


def test_an_address_without_a_cluster() -> None:
    with pytest.raises(ConfigError, match=r"executor.address = '127.0.0.1:1': no Ray cluster"):
        RayGrid("default", Share(1, 1.0, 0.0), "127.0.0.1:1")

"""A cluster that is named by its address: full, or not there."""

from __future__ import annotations

import pytest

from fedsim.errors import ConfigError
from fedsim.grids.ray_cluster import Share
from fedsim.grids.ray_grid import RayGrid
from tests.end_to_end.grids.test_ray import run_alone

START = """
import time
from fedsim.errors import ConfigError
from fedsim.grids.ray_cluster import Share, import_ray
from fedsim.grids.ray_grid import RayGrid
ray = import_ray()
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
"""

FULL = """
ray.init(address=cluster.address, log_to_driver=False)
class Other:
    def ready(self):
        return 1
other = ray.remote(num_cpus=1)(Other).options(lifetime="detached", name="other").remote()
ray.get(other.ready.remote())
ray.shutdown()
started = time.monotonic()
try:
    RayGrid("default", Share(1, 1.0, 0.0), cluster.address)
except ConfigError as error:
    print(error, "after 20 s" if time.monotonic() - started > 20.0 else "soon")
cluster.shutdown()
"""


def test_a_full_cluster_is_an_error_soon() -> None:
    """Another's worker holds the only core: there would be enough, but it is not free."""
    said = run_alone(START + FULL)
    assert "workers = 1: 0 could be placed within 12 s" in said
    assert said.rstrip().endswith("soon")


SHARED_GPU = """
import os
from fedsim.config import ExecutorConfig
from fedsim.materials import worker_device
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
cluster.shutdown()
"""


def test_two_workers_share_a_gpu_that_ray_assigned() -> None:
    """A GPU that Ray believes in is enough: what is tested is who is given which."""
    said = run_alone(START.replace('"num_cpus": 1', '"num_cpus": 1, "num_gpus": 1') + SHARED_GPU)
    assert "GPUs ['0', '0'] cuda" in said
    assert "gpus_per_worker = 0.6: needs 1.2 GPUs, the cluster has 1" in said


def test_an_address_without_a_cluster() -> None:
    with pytest.raises(ConfigError, match=r"executor.address = '127.0.0.1:1': no Ray cluster"):
        RayGrid("default", Share(1, 1.0, 0.0), "127.0.0.1:1")

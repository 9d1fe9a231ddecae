"""A cluster that is named by its address: full, or not there."""

from __future__ import annotations

import pytest

from fedsim.errors import ConfigError
from fedsim.grids.ray_cluster import Share
from fedsim.grids.ray_grid import RayGrid
from tests.end_to_end.test_ray import run_alone

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


def test_an_address_without_a_cluster() -> None:
    with pytest.raises(ConfigError, match=r"executor.address = '127.0.0.1:1': no Ray cluster"):
        RayGrid("default", Share(1, 1.0, 0.0), "127.0.0.1:1")

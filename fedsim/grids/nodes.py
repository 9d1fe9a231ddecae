"""The nodes of a grid, waited for: those of a SuperLink connect when they like."""

from __future__ import annotations

import time

from flwr.serverapp import Grid

_PATIENCE = 120.0  # seconds in which a SuperNode, started with the run, has long connected
_INTERVAL = 0.2


def wait_for_nodes(grid: Grid, count: int = 1, patience: float = _PATIENCE) -> list[int]:
    """Return the ids of all nodes that are connected, sorted, once there are `count` or more.

    Grids in the server's own process have theirs from the start; simulated nodes are registered
    while the ServerApp runs already, and SuperNodes come from other machines.

    Raises:
        RuntimeError: there were fewer for `patience` seconds.
    """
    end = time.monotonic() + patience
    while True:
        nodes = sorted(grid.get_node_ids())
        if len(nodes) >= count:
            return nodes
        if time.monotonic() >= end:
            raise RuntimeError(
                f"{len(nodes)} of {count} nodes connected within {patience:g} s; start the "
                "SuperNodes that are missing, or ask for fewer workers"
            )
        time.sleep(_INTERVAL)

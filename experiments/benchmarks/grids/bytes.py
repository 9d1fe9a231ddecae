"""Measure the bytes of a round between the server and its workers."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import cast

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsim.experiments.benchmarks.grids.null_client import CLIP, NAME, null_spec, parameters_of
from fedsim.experiments.benchmarks.timing import Row
from fedsim.grids.executor import GridExecutor
from fedsim.grids.ray_cluster import Share
from fedsim.grids.ray_grid import RayGrid

_PARAMETERS = 10_000_000


class Watched:
    """A grid that counts the bytes of messages, and records times reported in replies."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.num_bytes = 0
        self.engine_seconds: list[float] = []

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids of the wrapped grid."""
        return self._grid.get_node_ids()

    def send_and_receive(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Forward messages, and return their replies."""
        sent = list(messages)
        self.num_bytes = sum(pickled_bytes(message.content) for message in sent)
        self.engine_seconds = []
        for reply in self._grid.send_and_receive(sent):
            if reply.has_content():  # else it has an error, which the executor raises
                self.num_bytes += pickled_bytes(reply.content)
                timing = reply.content.metric_records.get("timing", {"engine": 0.0})
                self.engine_seconds.append(float(cast("float", timing["engine"])))
            yield reply


def pickled_bytes(content: RecordDict) -> int:
    """Return the bytes of a message's content between processes: pickle plus arrays."""
    beside: list[pickle.PickleBuffer] = []
    text = pickle.dumps(content, protocol=5, buffer_callback=beside.append)
    return len(text) + sum(buffer.raw().nbytes for buffer in beside)


def what_travels(share: Share) -> Row:
    """Return a round's bytes over those of one copy out and one float32 sum in per worker."""
    parameters = parameters_of(_PARAMETERS)
    with RayGrid(NAME, share) as grid:
        watched = Watched(grid)
        executor = GridExecutor(cast("Grid", watched), null_spec())
        executor.clipped_sum(parameters, np.arange(200), CLIP, 0)
    least = 2 * 4 * _PARAMETERS * share.workers
    return Row(
        benchmark="grids",
        case="bytes/10M",
        engine="ray",
        seconds=None,
        ratio=watched.num_bytes / least,
        details={"bytes": watched.num_bytes, "least": least, "workers": share.workers},
    )

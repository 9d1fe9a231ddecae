"""What travels in a round between the server and its workers, in bytes."""

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
    """A grid that counts the bytes of what it passes on, and keeps what replies say of time."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.num_bytes = 0
        self.engine_seconds: list[float] = []

    def get_node_ids(self) -> Iterable[int]:
        """Return the grid's."""
        return self._grid.get_node_ids()

    def send_and_receive(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Pass messages on, and their replies."""
        sent = list(messages)
        self.num_bytes = sum(pickled_bytes(message.content) for message in sent)
        self.engine_seconds = []
        for reply in self._grid.send_and_receive(sent):
            if reply.has_content():  # else it says what went wrong, which the executor raises
                self.num_bytes += pickled_bytes(reply.content)
                timing = reply.content.metric_records.get("timing", {"engine": 0.0})
                self.engine_seconds.append(float(cast("float", timing["engine"])))
            yield reply


def pickled_bytes(content: RecordDict) -> int:
    """Return what a message's content takes between processes: its pickle, and arrays beside it."""
    beside: list[pickle.PickleBuffer] = []
    text = pickle.dumps(content, protocol=5, buffer_callback=beside.append)
    return len(text) + sum(buffer.raw().nbytes for buffer in beside)


def what_travels(share: Share) -> Row:
    """Return the bytes of a round over those of a copy out and a float32 sum in for each worker."""
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

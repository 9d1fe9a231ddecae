"""The executor of all runs: sends shards of a cohort as Flower messages over any grid."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from flwr.app import Message
from flwr.serverapp import Grid

from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.execution import Keys, shards
from fedsim.grids.records import ClientSpec, ShardReply, ShardRequest, to_record
from fedsim.grids.sharding import even_shards
from fedsim.tensors import Tensors

_MESSAGE_TYPE = "train"
_AT_ONCE = 8  # sums that are added in one pass over memory, and are there at once
_PATIENCE = 120.0  # seconds in which a SuperNode, started with the run, has long connected
_INTERVAL = 0.2


class GridExecutor:
    """Sends shards to the grid's nodes in turn; adds up the replies in the order of the shards.

    A partial cohort is never released. A round fails if a shard is missing, comes twice or has a
    wrong number of units, or if a sum is not finite.

    Args:
        grid: any `flwr.serverapp.Grid`.
        spec: the run's settings for the clients.
        shard_size: units per message. 0 cuts the cohort into one shard per node with about equal
            numbers of tokens, so that each node sends one sum.
        tokens: (num_keys,) number of tokens of each unit, by key; None if all are equal.
    """

    def __init__(
        self,
        grid: Grid,
        spec: ClientSpec,
        shard_size: int = 0,
        tokens: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self._grid = grid
        self.spec = spec.model_dump_json()
        self._shard_size = shard_size
        self._tokens = tokens

    def clipped_sum(self, parameters: Tensors, cohort: Keys, clip: Clip, round: int) -> WeightedSum:
        """Return the sum over the cohort; for an empty cohort zero, without a message.

        Raises:
            RuntimeError: a shard failed, with the worker's own error; or no node connected.
        """
        nodes = wait_for_nodes(self._grid)
        pieces = self._cut(cohort, len(nodes))
        replies = self._replies(parameters, pieces, clip, nodes, round)
        at_once = min(len(nodes), _AT_ONCE)
        total: WeightedSum | None = None  # allocated with the first replies, as it is large
        waiting: dict[int, ShardReply] = {}
        ready: list[ShardReply] = []
        following = 0  # the next shard in order
        for reply in replies:
            known = following <= reply.shard < len(pieces) and reply.shard not in waiting
            if not known or reply.round != round:
                raise RuntimeError(
                    f"round {round}: shard {reply.shard} of round {reply.round} came twice or "
                    "without a request"
                )
            if reply.total.num_units != len(pieces[reply.shard]):
                raise RuntimeError(
                    f"round {round}: shard {reply.shard} has {reply.total.num_units} units, but "
                    f"{len(pieces[reply.shard])} were sent"
                )
            waiting[reply.shard] = reply
            while following in waiting:  # in shard order: the bits do not depend on timing
                ready.append(waiting.pop(following))
                following += 1
            if len(ready) >= at_once or following == len(pieces):
                total = _fold(total or WeightedSum.zero(parameters), ready, round)
                ready = []
        if following != len(pieces):
            raise RuntimeError(f"round {round}: {len(pieces) - following} shards got no reply")
        return total or WeightedSum.zero(parameters)

    def _cut(self, cohort: Keys, num_nodes: int) -> list[Keys]:
        if self._shard_size:
            return list(shards(cohort, self._shard_size))
        alike = np.ones(int(cohort.max(initial=0)) + 1, dtype=np.int64)
        return even_shards(cohort, alike if self._tokens is None else self._tokens, num_nodes)

    def _replies(
        self, parameters: Tensors, pieces: list[Keys], clip: Clip, nodes: list[int], round: int
    ) -> Iterator[ShardReply]:
        record, clip_json = to_record(parameters), clip.model_dump_json()
        requests = [  # a list: Flower's SuperLink grid iterates over the messages twice
            Message(
                ShardRequest(self.spec, clip_json, round, number, keys, record).to_content(),
                dst_node_id=nodes[number % len(nodes)],
                message_type=_MESSAGE_TYPE,
                group_id=str(round),
            )
            for number, keys in enumerate(pieces)
        ]
        for message in self._grid.send_and_receive(requests):
            if message.has_error():
                raise RuntimeError(f"round {round}: a worker failed: {message.error.reason}")
            try:
                reply = ShardReply.from_content(message.content)
            except ValueError as error:
                raise RuntimeError(f"round {round}: a reply that cannot be used: {error}") from None
            yield reply


def _fold(total: WeightedSum, replies: list[ShardReply], round: int) -> WeightedSum:
    """Add the replies into `total`; one pass over memory also computes their norms."""
    total, norms = total.absorb_([reply.total for reply in replies])
    for reply, norm in zip(replies, norms, strict=True):
        if not (math.isfinite(norm) and math.isfinite(reply.total.weight)):
            raise RuntimeError(
                f"round {round}: shard {reply.shard} has norm {norm} and weight "
                f"{reply.total.weight}; both must be finite"
            )
    return total


def wait_for_nodes(grid: Grid, count: int = 1, patience: float = _PATIENCE) -> list[int]:
    """Wait for at least `count` connected nodes; return the sorted ids of all.

    Under Flower, nodes may connect after the ServerApp has started.

    Raises:
        RuntimeError: after `patience` seconds there are fewer.
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

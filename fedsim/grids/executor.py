"""The executor of every run: shards of the cohort as Flower messages over any Grid."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flwr.app import Message
from flwr.serverapp import Grid

from fedsim.estimators import WeightedSum
from fedsim.execution import Keys, shards
from fedsim.grids.arrays import to_record
from fedsim.grids.records import ClientSpec, ShardReply, ShardRequest
from fedsim.tensors import Tensors, check_same_layout

_MESSAGE_TYPE = "train"


class GridExecutor:
    """Sends shards to the grid's nodes in turn and folds the replies in shard order.

    A partial cohort is never released: a missing, repeated or unasked-for shard, and a reply
    with another number of units than its shard has, fail the round.

    Args:
        grid: any `flwr.serverapp.Grid`.
        spec: what the clients must know.
        shard_size: units a message; 0 cuts the cohort into one shard a node.
    """

    def __init__(self, grid: Grid, spec: ClientSpec, shard_size: int = 0) -> None:
        self._grid = grid
        self._spec = spec.model_dump_json()
        self._shard_size = shard_size

    def clipped_sum(self, parameters: Tensors, cohort: Keys, round: int) -> WeightedSum:
        """Return the sum over the cohort; the sum over nobody is zero and sends no message.

        Raises:
            RuntimeError: a shard failed; the message holds the worker's own error.
        """
        total = WeightedSum.zero(parameters)
        nodes = sorted(self._grid.get_node_ids())
        size = self._shard_size or math.ceil(len(cohort) / len(nodes)) or 1
        pieces = list(shards(cohort, size))
        replies = self._replies(parameters, pieces, nodes, round)
        waiting: dict[int, WeightedSum] = {}
        folded = 0
        for reply in replies:
            if reply.shard in waiting or not folded <= reply.shard < len(pieces):
                raise RuntimeError(f"round {round}: shard {reply.shard} came twice or unasked")
            waiting[reply.shard] = _checked(reply, parameters, len(pieces[reply.shard]), round)
            while folded in waiting:  # in shard order, so that the bits do not depend on timing
                total = total + waiting.pop(folded)
                folded += 1
        if folded != len(pieces):
            raise RuntimeError(f"round {round}: {len(pieces) - folded} shards got no reply")
        return total

    def _replies(
        self,
        parameters: Tensors,
        pieces: list[Keys],
        nodes: list[int],
        round: int,
    ) -> Iterator[ShardReply]:
        record = to_record(parameters)
        requests = (
            Message(
                ShardRequest(self._spec, round, number, keys, parameters).to_content(record),
                dst_node_id=nodes[number % len(nodes)],
                message_type=_MESSAGE_TYPE,
                group_id=str(round),
            )
            for number, keys in enumerate(pieces)
        )
        for message in self._grid.send_and_receive(requests):
            if message.has_error():
                raise RuntimeError(f"round {round}: a worker failed: {message.error.reason}")
            yield ShardReply.from_content(message.content)


def _checked(reply: ShardReply, layout: Tensors, num_units: int, round: int) -> WeightedSum:
    check_same_layout(layout, reply.total.values)
    if reply.total.num_units != num_units:
        raise RuntimeError(
            f"round {round}: shard {reply.shard} counts {reply.total.num_units} units, "
            f"was sent {num_units}"
        )
    return reply.total

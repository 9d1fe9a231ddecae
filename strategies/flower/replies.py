"""The executor of a Flower round: check, clip and add the clients' replies."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord, Message

from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.execution import Accumulator, Keys, Update
from fedsim.grids.records import from_record
from fedsim.tensors import Tensors, check_same_layout


class Replies:
    """An executor over existing replies, each with a client's trained parameters.

    Args:
        replies: replies from the grid, in any order.
        nodes: node id for each key of a cohort.
    """

    def __init__(self, replies: Iterable[Message], nodes: list[int]) -> None:
        self._replies = replies
        self._nodes = nodes

    def clipped_sum(self, parameters: Tensors, cohort: Keys, clip: Clip, round: int) -> WeightedSum:
        """Return Σ clip(sent − returned), which the optimizer uses as a gradient.

        Every node has weight 1; the number of examples in its reply is ignored.

        Raises:
            RuntimeError: a node of the cohort is missing, failed or replied twice; a reply is not
                one record of arrays like those sent; or a node outside the cohort replied.
        """
        nodes = [self._nodes[key] for key in cohort]
        answers = self._by_node(frozenset(nodes), round)
        if missing := [node for node in nodes if node not in answers]:
            raise RuntimeError(f"round {round}: no reply from the nodes {missing}; no release")
        total = Accumulator(parameters, clip)
        for node in nodes:  # in cohort order, so that the bits do not depend on timing
            returned = _arrays(answers.pop(node), parameters, round)
            # float64: the difference of two large float32 numbers must not overflow
            update = {name: sent.double() - returned[name] for name, sent in parameters.items()}
            total.add(Update(update, loss=0.0, num_gradients=0), weight=1.0)
        return total.total()

    def _by_node(self, asked: frozenset[int], round: int) -> dict[int, Message]:
        answers: dict[int, Message] = {}
        for reply in self._replies:
            node = reply.metadata.src_node_id
            if reply.has_error():
                raise RuntimeError(f"round {round}: node {node} failed: {reply.error.reason}")
            if node in answers or node not in asked:
                raise RuntimeError(f"round {round}: node {node} replied twice or without a request")
            answers[node] = reply
        return answers


def _arrays(reply: Message, sent: Tensors, round: int) -> dict[str, torch.Tensor]:
    """Return the arrays of a reply's only array record, float64; its name is ignored, as in FedAvg.

    NaN and infinities pass: the accumulator replaces such an update by zero.
    """
    node = reply.metadata.src_node_id
    # `content.array_records` would keep the arrays alive until the next garbage collection.
    records = [record for record in reply.content.values() if isinstance(record, ArrayRecord)]
    if len(records) != 1:
        raise RuntimeError(f"round {round}: node {node} sent {len(records)} array records, not one")
    returned = from_record(records[0])
    try:
        check_same_layout(sent, returned)
    except ValueError as error:
        raise RuntimeError(f"round {round}: node {node}: {error}") from None
    return {name: value.double() for name, value in returned.items()}

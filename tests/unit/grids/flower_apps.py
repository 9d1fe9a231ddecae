"""A grid of many nodes in this process, and ClientApps whose updates are known."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsim.grids.in_process import InProcessGrid

Weights = dict[str, npt.NDArray[np.float32]]
Local = Callable[[int, Weights], Weights]
BIG_NODE = 2**63 + 11  # real node ids are unsigned 64-bit numbers


class ManyNodes(InProcessGrid):
    """`num_nodes` nodes, all served by one ClientApp; remembers who was asked, a list a call."""

    def __init__(self, app: ClientApp, num_nodes: int) -> None:
        super().__init__(app)
        self.nodes = [BIG_NODE + number for number in range(num_nodes)]
        self.asked: list[list[int]] = []

    def get_node_ids(self) -> Iterable[int]:
        return list(reversed(self.nodes))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        kept = list(messages)
        self.asked.append([message.metadata.dst_node_id for message in kept])
        return super().send_and_receive(kept, timeout=timeout)


def answering(content: RecordDict) -> InProcessGrid:
    """A grid whose client answers every message with the same content."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(content, reply_to=message)

    return InProcessGrid(app)


@contextmanager
def no_collecting() -> Iterator[None]:
    """Collect no garbage within the block."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def record(weights: Weights) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in weights.items()})


def weights_of(arrays: ArrayRecord) -> Weights:
    return {name: np.asarray(array.numpy()) for name, array in arrays.items()}


def client(local: Local) -> ClientApp:
    """A ClientApp as people have it: local(node's number, weights) -> new weights."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        weights = weights_of(message.content.array_records["arrays"])
        trained = local(context.node_id - BIG_NODE, weights)
        metrics = MetricRecord({"loss": 1.0, "num-examples": 10 ** (context.node_id - BIG_NODE)})
        return Message(RecordDict({"arrays": record(trained), "m": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"accuracy": 0.5, "num-examples": 3})
        return Message(RecordDict({"m": metrics}), reply_to=message)

    return app

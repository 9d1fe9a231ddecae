"""Flower's interfaces, on the grid that is not Flower's: messages, live arrays, no surprise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedsim.estimators import WeightedSum
from fedsim.experiments.benchmarks.grids import null_client
from fedsim.grids.executor import GridExecutor
from fedsim.grids.in_process import InProcessGrid
from fedsim.grids.records import LiveArray, ShardReply, from_record, to_record


@pytest.fixture
def echo() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(message.content, reply_to=message)

    return app


def hello(node: int) -> Message:
    return Message(RecordDict({"a": to_record({"x": torch.ones(3)})}), node, "train")


def test_it_is_a_flower_grid(echo: ClientApp) -> None:
    grid = InProcessGrid(echo)
    assert isinstance(grid, Grid)
    (node,) = grid.get_node_ids()
    (reply,) = grid.send_and_receive([hello(node)])
    assert torch.equal(from_record(reply.content.array_records["a"])["x"], torch.ones(3))


def test_an_error_in_the_client_app_is_raised() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise RuntimeError("no such user")

    grid = InProcessGrid(app)
    with pytest.raises(RuntimeError, match="no such user"):
        list(grid.send_and_receive([hello(2)]))


def test_a_live_array_shares_memory_and_is_read_only() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    array = LiveArray(tensor.numpy())
    assert np.shares_memory(array.numpy(), tensor.numpy())
    with pytest.raises(ValueError, match="read-only"):
        array.numpy()[0, 0] = 1.0


def test_a_live_array_is_an_array_on_the_wire() -> None:
    values = np.arange(6, dtype=np.float64).reshape(2, 3)
    live, stock = LiveArray(values), Array(values)
    assert live.object_id == stock.object_id
    assert (live.dtype, live.shape, live.stype, live.data) == (
        stock.dtype,
        stock.shape,
        stock.stype,
        stock.data,
    )
    assert np.array_equal(Array.inflate(live.deflate(), live.children).numpy(), values)


def test_tensors_survive_a_record() -> None:
    tensors = {"w": torch.randn(4, 2), "b": torch.tensor(3.0, dtype=torch.float64)}
    record = to_record(tensors)
    assert isinstance(record, ArrayRecord)
    back = from_record(record)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)
    back["w"] += 1.0  # a copy: writable, and the original stays
    assert not torch.equal(back["w"], tensors["w"])


def test_what_travels_is_half_of_what_was_summed_and_within_its_bound() -> None:
    """Rounding to float32 moves a sum by 2^-24 of its length at most, and all by as much."""
    generator = torch.Generator().manual_seed(0)
    moved, lengths, travelled = torch.zeros(10_000, dtype=torch.float64), 0.0, 0
    for shard in range(8):
        exact = torch.randn(10_000, generator=generator, dtype=torch.float64) * 10.0 ** (shard - 4)
        total = WeightedSum({"w": exact}, weight=3.0, num_units=3)
        content = ShardReply(0, shard, total).to_content()
        travelled += sum(a.numpy().nbytes for a in content.array_records["sum"].values())
        moved += ShardReply.from_content(content).total.values["w"].double() - exact
        lengths += float(exact.norm())
    assert travelled == 8 * 4 * 10_000
    assert 0.0 < float(moved.norm()) <= 2.0**-24 * lengths


@pytest.mark.parametrize("nodes", [1, 3])
def test_parameters_and_sums_travel_once_a_node(nodes: int) -> None:
    class Nodes(InProcessGrid):
        def __init__(self, app: ClientApp) -> None:
            super().__init__(app)
            self.sent: list[Message] = []

        def get_node_ids(self) -> list[int]:
            return list(range(2, 2 + nodes))

        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:  # noqa: ANN401
            self.sent = list(messages)
            return super().send_and_receive(self.sent)

    grid = Nodes(null_client.app)
    parameters = null_client.parameters_of(1_000)
    GridExecutor(grid, null_client.null_spec()).clipped_sum(
        parameters, np.arange(50), null_client.CLIP, 0
    )
    assert len(grid.sent) == nodes
    assert {message.metadata.dst_node_id for message in grid.sent} == set(grid.get_node_ids())
    records = {id(message.content.array_records["parameters"]) for message in grid.sent}
    assert len(records) == 1  # one object: a grid with shared memory stores it once

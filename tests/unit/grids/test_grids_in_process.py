"""Flower's interfaces, on the grid that is not Flower's: messages, live arrays, no surprise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedsim.grids.in_process import InProcessGrid
from fedsim.grids.records import LiveArray, from_record, to_record


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


def test_push_then_pull_hands_each_reply_out_once(echo: ClientApp) -> None:
    grid = InProcessGrid(echo)
    (node,) = grid.get_node_ids()
    keys = list(grid.push_messages([hello(node), hello(node)]))
    assert len(set(keys)) == 2
    assert len(list(grid.pull_messages(keys))) == 2
    assert list(grid.pull_messages(keys)) == []


def test_an_error_in_the_client_app_is_raised() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise RuntimeError("no such user")

    grid = InProcessGrid(app)
    with pytest.raises(RuntimeError, match="no such user"):
        list(grid.push_messages([hello(2)]))


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

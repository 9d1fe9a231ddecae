"""The parameters of a round reach a worker's device once."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsim.clients.app import app
from fedsim.errors import ConfigError
from fedsim.grids import ray_worker, records
from fedsim.grids.executor import GridExecutor
from fedsim.grids.in_process import InProcessGrid
from fedsim.grids.ray_worker import Envelope, Worker
from fedsim.grids.records import ParametersOnDevice, to_record
from fedsim.materials import Materials, check_device
from tests.conftest import small_config
from tests.contracts.test_executors import CLIP, TASKS, client_spec
from tests.unit.grids.flower_apps import no_collecting

CPU = torch.device("cpu")


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ArrayRecord]]:
    """Every record whose arrays were made tensors of."""
    seen: list[ArrayRecord] = []
    real = records.loaded

    def spy(record: ArrayRecord, device: torch.device) -> dict[str, torch.Tensor]:
        seen.append(record)
        return real(record, device)

    monkeypatch.setattr(records, "loaded", spy)
    yield seen


def test_once_a_round_in_process(
    loads: list[ArrayRecord], speeches: Path, materials: Materials
) -> None:
    spec = client_spec(small_config(speeches), TASKS["fedsgd"])
    executor = GridExecutor(InProcessGrid(app), spec, shard_size=1)
    for round in range(3):
        executor.clipped_sum(materials.model.initial_parameters(), np.arange(4), CLIP, round)
        assert len(loads) == round + 1


def test_no_part_of_a_round_waits_for_a_garbage_collection(
    speeches: Path, materials: Materials
) -> None:
    """Each is as large as the parameters, or a sum, and many rounds pass between two of those."""
    left: list[weakref.ref[ArrayRecord]] = []

    class Watched(InProcessGrid):
        def send_and_receive(
            self, messages: Iterable[Message], *, timeout: float | None = None
        ) -> Iterator[Message]:
            for message in messages:
                (reply,) = super().send_and_receive([message])
                for part in (*message.content.values(), *reply.content.values()):
                    if isinstance(part, ArrayRecord):
                        left.append(weakref.ref(part))
                yield reply

    executor = GridExecutor(
        Watched(app), client_spec(small_config(speeches), TASKS["fedsgd"]), shard_size=2
    )
    with no_collecting():
        executor.clipped_sum(materials.model.initial_parameters(), np.arange(4), CLIP, 0)
        assert [record() for record in left] == [None] * 6  # parameters, units and sum, twice


def test_a_ray_worker_hands_the_same_record_to_all_shards_of_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray unpacks an object anew for every task: equal arrays, but not the same record."""
    seen = []
    echo = ClientApp()

    @echo.train()
    def train(message: Message, context: Context) -> Message:
        seen.append(message.content.array_records["parameters"])
        return Message(RecordDict(), reply_to=message)

    monkeypatch.setattr(ray_worker, "resolve", lambda *_: echo)
    worker = Worker("echo")
    for key in ("first", "first", "second"):
        small = RecordDict({"request": ConfigRecord({"shard": 0})})
        envelope = Envelope(2, "train", "0", small, ("parameters",), (key,))
        worker.answer(envelope, to_record({"w": torch.ones(3)}))
    assert seen[0] is seen[1]
    assert seen[1] is not seen[2]


def test_on_the_cpu_they_are_the_servers_own_memory_where_kernels_round_alike() -> None:
    """Kernels round by how memory is aligned: what is not, is copied to where it is."""
    on_device, values = ParametersOnDevice(), {"w": torch.ones(5), "of a file": torch.ones(9)[1:]}
    record = to_record(values)
    there = on_device(record, CPU)
    assert there["w"].data_ptr() == values["w"].data_ptr()
    assert there["of a file"].data_ptr() != values["of a file"].data_ptr()
    assert all(value.data_ptr() % 64 == 0 for value in there.values())
    assert all(torch.equal(there[name], value) for name, value in values.items())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_share_of_a_gpu_that_torch_cannot_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    check_device("cpu")
    with pytest.raises(ConfigError, match=r"the worker got 1 of the GPUs '0', but torch .* sees 0"):
        check_device("cuda")

"""The parameters of a round reach a worker's device once, and nobody writes into them."""

from __future__ import annotations

from collections.abc import Iterator
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

CPU = torch.device("cpu")


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ArrayRecord]]:
    """Every record whose arrays were copied."""
    seen: list[ArrayRecord] = []
    real = records.from_record

    def spy(record: ArrayRecord, device: torch.device) -> dict[str, torch.Tensor]:
        seen.append(record)
        return real(record, device)

    monkeypatch.setattr(records, "from_record", spy)
    yield seen


def test_once_a_round_in_process(
    loads: list[ArrayRecord], speeches: Path, materials: Materials
) -> None:
    spec = client_spec(small_config(speeches), TASKS["fedsgd"])
    executor = GridExecutor(InProcessGrid(app), spec, shard_size=1)
    for round in range(3):
        executor.clipped_sum(materials.model.initial_parameters(), np.arange(4), CLIP, round)
        assert len(loads) == round + 1


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


def test_writing_into_them_is_found_out() -> None:
    on_device, record = ParametersOnDevice(), to_record({"w": torch.ones(3)})
    first = on_device(record, CPU)
    assert on_device(record, CPU)["w"] is first["w"]
    first["w"].add_(1.0)
    with pytest.raises(RuntimeError, match="wrote into the parameters"):
        on_device(record, CPU)
    fresh = on_device(to_record({"w": torch.ones(3)}), CPU)
    assert fresh["w"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_share_of_a_gpu_that_torch_cannot_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    check_device("cpu")
    with pytest.raises(ConfigError, match=r"gpus_per_worker: the worker got a share of GPU '0'"):
        check_device("cuda")

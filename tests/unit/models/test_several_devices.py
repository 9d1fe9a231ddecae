"""A network on two devices computes what it does on one."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.materialised import materialised
from fedsim.clipping import FlatClip
from fedsim.config import ModelConfig
from fedsim.errors import ConfigError
from tests.contracts.layer_samples import GivenUnits, opened, ragged_units
from tests.unit.models.test_mixed_precision import llama

LORA = ModelConfig(lora_rank=2)
TWO = "cuda:0,cuda:1"


def test_more_devices_than_blocks_are_refused() -> None:
    with pytest.raises(ConfigError, match="a network of 2 blocks cannot be split over 3 GPUs"):
        opened(llama(), LORA, device="cpu,cpu,cpu")


@pytest.mark.parametrize("devices", [
    pytest.param(TWO, marks=pytest.mark.skipif(
        torch.cuda.device_count() < 2, reason="there are no two GPUs")),
    "cpu,cpu",
])  # fmt: skip
def test_the_sum_is_that_of_one_device(devices: str) -> None:
    sums = []
    for device in (devices.split(",", maxsplit=1)[0], devices):
        model = opened(llama(), LORA, device=device)
        start = {n: (v + 0.01).to(model.device) for n, v in model.initial_parameters().items()}
        task = GivenUnits(model, ragged_units())
        engine = materialised(cast(OpenModel, model))
        sums.append(engine(task, start, task.keys, FlatClip(l2_clip_norm=0.1), 0).values)
    for name, value in sums[0].items():
        torch.testing.assert_close(sums[1][name], value, rtol=1e-5, atol=1e-7)

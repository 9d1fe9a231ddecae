"""What a round needs of the memory is counted without taking it, and refused in one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from flwr.clientapp import ClientApp

from fedsim.clients.engines.per_example import chunks
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.config import Config, ExecutorConfig, ModelConfig
from fedsim.errors import ConfigError
from fedsim.grids.in_process import InProcessGrid
from fedsim.grids.memory_needed import _kept, check_memory
from fedsim.materials import Materials
from fedsim.strategy import build_plan
from tests.conftest import small_config
from tests.contracts.layer_samples import small_model

MODELS = {
    "all": ModelConfig(),
    "4 bits": ModelConfig(lora_rank=2, quantisation="nf4", merged=False),
    "fused": ModelConfig(attention="sdpa"),
    "lstm": ModelConfig(name_or_path="mcmahan-lstm"),
}


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_a_pass_is_counted_as_if_it_were_made(config: ModelConfig) -> None:
    model = small_model(config)
    leaves = {n: value.requires_grad_() for n, value in model.initial_parameters().items()}
    expected = chunks._kept(cast(OpenModel, model), leaves, 1, 16)
    assert sum(_kept(model, 16).values()) == pytest.approx(expected, rel=0.1)


def test_a_gpu_that_is_too_small_is_refused_with_what_would_fit(
    materials: Materials, speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = small_config(speeches)
    config = Config(**{**given.model_dump(), "executor": ExecutorConfig(gpus_per_worker=1.0)})
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda _device: 0)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _device: (200_000, 400_000))
    some = replace(materials, model=small_model(ModelConfig()))
    grid, plan = InProcessGrid(ClientApp()), build_plan(config, some)
    with pytest.raises(ConfigError) as refused:
        check_memory(config, some, plan, grid, "cuda")
    message = str(refused.value)
    assert "GB of the memory of the GPU, which has 0.0002 GB; hold the frozen base in 4" in message
    assert "executor.gpus_per_worker" in message
    with pytest.raises(ConfigError, match=r"of the GPU, which has 0\.0004 GB"):
        check_memory(config, some, plan, grid, "cuda:0,cuda:1")
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _device: (2**40, 2**40))
    check_memory(config, some, plan, grid, "cuda")


def test_the_loop_counts_the_longest_text_there_is(
    materials: Materials, speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []

    def needs_nothing(*given: int) -> int:
        counted.append(given[-1])
        return 0

    monkeypatch.setattr("fedsim.grids.memory_needed.pass_bytes", needs_nothing)
    longest = int(materials.store.lengths(materials.split.train_examples).max())
    for engine in ("auto", "loop"):
        config = small_config(speeches, data={"sequence_length": 99}, executor={"engine": engine})
        grid = InProcessGrid(ClientApp())
        check_memory(config, materials, build_plan(config, materials), grid, "cpu")
    assert counted == [99, longest]
    assert longest < 99

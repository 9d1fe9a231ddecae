"""The least memory of a round, compared with the machine's before the first round begins."""

from __future__ import annotations

import torch
from flwr.serverapp import Grid

from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.grids.in_process import InProcessGrid
from fedsim.grids.ray_grid import RayGrid
from fedsim.language_model import LanguageModel
from fedsim.materials import worker_device
from fedsim.parts import server_optimizer
from fedsim.utils.machine import memory_for_this_process

_FLOAT32, _FLOAT64 = 4, 8


def check_memory(config: Config, model: LanguageModel, grid: Grid, device: str) -> None:
    """Raise `ConfigError` if parameters and sums alone do not fit the memory.

    Counted are the network, the trained parameters with the optimizer's state and their average,
    and each worker's copy of them, float64 sum and one gradient. Activations come on top. Workers
    on other machines or on GPUs of other processes are not counted.

    Raises:
        ConfigError: too little memory, or checkpointing for a network without blocks.
    """
    executor = config.executor
    if executor.checkpointing and not getattr(model, "blocks", ()):
        raise ConfigError(
            f"executor.checkpointing = true: the network of {config.model.name_or_path!r} has no "
            "blocks that transformers knows how to compute again; leave it out"
        )
    trained = sum(value.numel() for value in model.initial_parameters().values())
    network = _FLOAT32 * model.num_parameters
    server = network + _FLOAT32 * trained * (1 + server_optimizer(config).copies)
    worker = (_FLOAT32 + _FLOAT64) * trained  # a gradient and the sum
    alone = isinstance(grid, InProcessGrid)
    if alone and worker_device(executor, device).startswith("cuda"):
        free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
        _compare(config, network + _FLOAT32 * trained + worker, free, "of the GPU")
    elif alone:
        server += worker
    elif isinstance(grid, RayGrid) and not (executor.address or executor.gpus_per_worker):
        server += executor.workers * (network + _FLOAT32 * trained + worker)
    _compare(config, server, memory_for_this_process(), "of this machine")


def _compare(config: Config, needed: int, available: int | None, place: str) -> None:
    if available is not None and needed > available:
        raise ConfigError(
            f"model.name_or_path = {config.model.name_or_path!r}: a round needs at least "
            f"{needed / 1e9:.2g} GB of the memory {place}, which has {available / 1e9:.2g} GB; "
            "train fewer parameters (model.lora_rank, model.trainable), take fewer "
            "executor.workers, or a smaller model"
        )

"""Check before the first round that the machine has a round's minimum memory."""

from __future__ import annotations

from contextlib import suppress

import torch
from flwr.serverapp import Grid

from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.grids.in_process import InProcessGrid
from fedsim.grids.ray_grid import RayGrid
from fedsim.language_model import LanguageModel, made_up_text, module_of
from fedsim.materials import Materials, worker_device
from fedsim.parts import server_optimizer
from fedsim.plan import RoundPlan
from fedsim.utils.machine import memory_for_this_process

_FLOAT32, _FLOAT64 = 4, 8
_LONG, _SMALL = 1024, 2**29  # tokens, bytes
_AT_ONCE = 64  # texts of a unit that the engine `loop` computes together, see clients/tasks


def check_memory(
    config: Config, materials: Materials, plan: RoundPlan, grid: Grid, device: str
) -> None:
    """Raise `ConfigError` if the minimum memory of a round does not fit the machine.

    The minimum has the network, the trained parameters, their average and the optimizer's state.
    For each worker on this machine it adds copies of network and parameters, a float64 sum, a
    gradient, and the activations of a pass over texts of `data.sequence_length` tokens, or with
    `loop` over the longest texts. A pass has one text; with `loop` and local training it has the
    texts of a step.

    Raises:
        ConfigError: too little memory, or checkpointing for a network without blocks.
    """
    executor, model = config.executor, materials.model
    if executor.checkpointing and not getattr(model, "blocks", ()):
        raise ConfigError(
            f"executor.checkpointing = true: the network of {config.model.name_or_path!r} has no "
            "blocks that transformers knows how to compute again; leave it out"
        )
    trained = sum(value.numel() for value in model.initial_parameters().values())
    network = network_bytes(model)
    server = network + _FLOAT32 * trained * (1 + server_optimizer(config).copies)
    worker = (_FLOAT32 + _FLOAT64) * trained  # a gradient and the sum
    worker += _FLOAT32 * trained * (config.strategy.local.task == "fedavg")  # its own parameters
    texts, length = _texts_at_once(config, materials, plan), _longest(config, materials, plan)
    worker += pass_bytes(config, model, texts, length)
    alone, whole = isinstance(grid, InProcessGrid), network + _FLOAT32 * trained + worker
    here = isinstance(grid, RayGrid) and not executor.address
    if torch.cuda.is_available() and worker_device(executor, device).startswith("cuda"):
        if alone:
            free = sum(
                torch.cuda.mem_get_info(each)[0] + torch.cuda.memory_reserved(each)
                for each in device.split(",")
            )
            _compare(config, whole, free, "of the GPU")
        elif here:
            of_one = torch.cuda.get_device_properties(0).total_memory
            _compare(config, whole, int(of_one * executor.gpus_per_worker), "of a worker's GPUs")
    elif alone:
        server += worker
    elif here:
        server += executor.workers * whole
    _compare(config, server, memory_for_this_process(), "of this machine")


def network_bytes(model: LanguageModel) -> int:
    """Return the bytes of a network's weights and buffers, or 4 per parameter if it hides them."""
    module = module_of(model)
    held = [*module.parameters(), *module.buffers()]
    return sum(value.nbytes for value in held) or _FLOAT32 * model.num_parameters


def pass_bytes(config: Config, model: LanguageModel, texts: int, length: int) -> int:
    """Return the minimum bytes that a pass keeps for its gradient, without allocating them.

    Only the logits are counted with checkpointing, for small networks, and for networks that torch
    cannot trace.
    """
    kept = 0
    large = length >= _LONG or network_bytes(model) > _SMALL  # tracing takes a second
    if large and not config.executor.checkpointing:
        with suppress(Exception):  # some networks read values, which traced tensors do not have
            kept = sum(_kept(model, length).values())
    if config.executor.precision == "bfloat16":
        kept //= 2
    scores = 2 * _FLOAT32 * length * model.vocabulary_size  # and their gradient
    return texts * (kept + scores)


def _kept(model: LanguageModel, length: int) -> dict[int, int]:
    """Return the bytes of each storage that autograd keeps for a text, without weights."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415 (slow)

    module, kept = module_of(model), dict[int, int]()
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        leaves = {
            name: fake.from_tensor(value.to(model.device)).requires_grad_()
            for name, value in model.initial_parameters().items()
        }
        own = [*leaves.values(), *map(fake.from_tensor, [*module.parameters(), *module.buffers()])]
        weights = {value.untyped_storage()._cdata for value in own}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in weights:
                kept[storage._cdata] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            logits = model.logits(leaves, fake.from_tensor(made_up_text(model, length, 0)))
        del logits
    return kept


def _texts_at_once(config: Config, materials: Materials, plan: RoundPlan) -> int:
    """Return the minimum number of texts in a pass over the largest user."""
    most = plan.task.options.get(
        "batch_size"
    )  # of local training, which computes one unit at a time
    if most is None and config.executor.engine == "loop":
        most = plan.task.options.get("group_size")
    return max(1, min(int(most or 1), _AT_ONCE, int(materials.split.user_sizes.max(initial=1))))


def _longest(config: Config, materials: Materials, plan: RoundPlan) -> int:
    """Return the maximum number of tokens of a text in a pass.

    All engines except `loop` also compute made-up texts of full length.
    """
    joined = plan.task.options.get("selection") == "random-chunk"
    if joined or config.executor.engine != "loop":
        return config.data.sequence_length
    return int(materials.store.lengths(materials.split.train_examples).max(initial=1))


def _compare(config: Config, needed: int, available: int | None, place: str) -> None:
    if available is not None and needed > available:
        raise ConfigError(
            f"model.name_or_path = {config.model.name_or_path!r}: a round needs at least "
            f"{needed / 1e9:.2g} GB of the memory {place}, which has {available / 1e9:.2g} GB; "
            f"{remedies(config)}"
        )


def remedies(config: Config) -> str:
    """Return the config keys that would lower a round's memory and are not set yet."""
    model, executor = config.model, config.executor
    helps = {
        'hold the frozen base in 4 bits (model.quantisation = "nf4")': not model.quantisation,
        "train fewer parameters (model.lora_rank, model.trainable)": not model.adapts,
        "compute activations again (executor.checkpointing)": not executor.checkpointing,
        "take fewer executor.workers": executor.workers > 1,
        "more executor.gpus_per_worker": executor.gpus_per_worker > 0,
        "a smaller data.sequence_length or strategy.group_size": True,
    }
    return "; ".join([text for text, does in helps.items() if does]) + "; or a smaller model"

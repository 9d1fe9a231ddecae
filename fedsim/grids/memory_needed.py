"""What a round needs of the memory there is, told before the first one begins.

The least that a round can do with: parameters in their copies, one unit's gradient, and what one
pass through the network leaves behind. Interpreter, fragments and larger batches come on top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from flwr.serverapp import Grid

from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.grids.in_process import InProcessGrid
from fedsim.grids.ray_grid import RayGrid
from fedsim.language_model import LanguageModel, module_of
from fedsim.materials import worker_device
from fedsim.plan import RoundPlan
from fedsim.utils.machine import memory_for_this_process

_FLOAT32 = 4
_MOMENTS = {"adam": 2}  # float32 copies of the parameters
_MICROBATCH = 64  # sequences of a unit that local training and `loop` take at once, at most
_RANK = 8


@dataclass(frozen=True)
class _Round:
    """Sizes of a round, in float32 numbers.

    Attributes:
        network: parameters, frozen ones included.
        moving: those that are trained.
        adapters: what adapters of rank 8 on every layer would have at most.
        moments: copies of the moving parameters that the server's optimizer keeps.
        gradients: copies of them that a unit's update takes.
        tokens: of the smallest pass.
        logits: of a token.
        activations: of a token, kept for the backward pass.
        blocks: of which one's activations are kept with checkpoints.
        workers: on this machine.
    """

    network: int
    moving: int
    adapters: int
    moments: int
    gradients: int
    tokens: int
    logits: int
    activations: int
    blocks: int
    workers: int

    def server(self) -> dict[str, int]:
        """Return bytes of what the server has, by name."""
        return _bytes(
            {"network": self.network, "parameters and optimizer": (1 + self.moments) * self.moving}
        )

    def parameters(self) -> dict[str, int]:
        """Return bytes of the parameters in the memory of workers that do not read the server's."""
        return _bytes({"workers' parameters": self.moving})

    def worker(self) -> dict[str, int]:
        """Return bytes of what one worker has beside a network and parameters, by name."""
        return _bytes(
            {
                "its sum in float64": 2 * self.moving,
                "a unit's gradient": self.gradients * self.moving,
                "a pass through the network": self.tokens
                * (2 * self.logits + self.activations // self.blocks),
            }
        )


def _bytes(numbers: Mapping[str, int]) -> dict[str, int]:
    return {name: _FLOAT32 * count for name, count in numbers.items() if count}


def check_memory(
    config: Config, model: LanguageModel, plan: RoundPlan, grid: Grid, device: str
) -> None:
    """Raise `ConfigError` where a round cannot fit the memory; it says which keys would do.

    Workers on other machines are not looked at, nor those on GPUs of another process.

    Raises:
        ConfigError: also where checkpoints are wanted of a network without blocks.
    """
    if config.executor.checkpointing and not getattr(model, "blocks", ()):
        raise ConfigError(
            f"executor.checkpointing = true: the network of {config.model.name_or_path!r} has no "
            "blocks that transformers knows how to compute again; leave it out"
        )
    here = isinstance(grid, InProcessGrid)
    on_gpu = here and worker_device(config.executor, device).startswith("cuda")
    others = isinstance(grid, RayGrid) and not (
        config.executor.address or config.executor.gpus_per_worker
    )
    workers = 1 if here else config.executor.workers if others else 0
    one = _sizes(config, model, plan, workers)
    ways = _ways(config, model, one)

    def on_this_machine(size: _Round) -> dict[str, int]:
        server = size.server()
        if here:
            return server if on_gpu else server | size.worker()
        if not others:
            return server
        worker = sum(size.worker().values()) + _FLOAT32 * size.network
        return server | size.parameters() | {f"{size.workers} workers": size.workers * worker}

    def on_the_gpu(size: _Round) -> dict[str, int]:
        return _bytes({"network": size.network}) | size.parameters() | size.worker()

    places = [("memory", on_this_machine, memory_for_this_process())]
    if on_gpu:
        free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
        places.append(("memory of the GPU", on_the_gpu, free))
    for what, needed, there_is in places:
        parts = needed(one)
        if there_is is not None and sum(parts.values()) > there_is:
            shown = ", ".join(f"{name} {_gb(size)}" for name, size in parts.items())
            raise ConfigError(
                f"model.name_or_path = {config.model.name_or_path!r}: a round needs "
                f"{_gb(sum(parts.values()))} of {what} at least ({shown}), and there are "
                f"{_gb(there_is)}; {_what_would_fit(one, ways, needed, there_is)}"
            )


def _what_would_fit(
    one: _Round,
    ways: Mapping[str, Mapping[str, int]],
    needed: Callable[[_Round], Mapping[str, int]],
    there_is: int,
) -> str:
    """Return the keys of which each is enough, or all that are known where they are together."""
    totals = {key: sum(needed(replace(one, **way)).values()) for key, way in ways.items()}
    fits = [f"{key} ({_gb(total)})" for key, total in totals.items() if total <= there_is]
    if fits:
        return "what would fit: " + ", or ".join(fits)
    merged = {name: size for way in ways.values() for name, size in way.items()}
    together = sum(needed(replace(one, **merged)).values())
    if together <= there_is:
        return f"what would fit: {' and '.join(ways)}, together ({_gb(together)})"
    return "take a smaller model, or a machine with more"


def _sizes(config: Config, model: LanguageModel, plan: RoundPlan, workers: int) -> _Round:
    moving = model.initial_parameters()
    everything: Iterable[torch.Tensor] = list(module_of(model).parameters()) or moving.values()
    widths = sum(
        sum(value.shape)
        for value in everything
        if value.ndim == 2 and model.vocabulary_size not in value.shape
    )
    local, engine = config.strategy.local.task == "fedavg", config.executor.engine
    whole_unit = local or engine == "loop"
    examples = int(plan.task.options.get("group_size") or 1)
    blocks = len(getattr(model, "blocks", ())) if config.executor.checkpointing else 1
    return _Round(
        network=model.num_parameters,
        moving=sum(value.numel() for value in moving.values()),
        adapters=_RANK * widths,
        moments=_MOMENTS.get(config.server.optimizer, 0),
        gradients=2 if local else 0 if engine in ("auto", "ghost") else 1,
        tokens=config.data.sequence_length * (min(examples, _MICROBATCH) if whole_unit else 1),
        logits=model.vocabulary_size,
        activations=widths,
        blocks=max(1, blocks),
        workers=workers,
    )


def _ways(config: Config, model: LanguageModel, one: _Round) -> dict[str, dict[str, int]]:
    """Return what makes a round smaller, by the key that does it."""
    ways: dict[str, dict[str, int]] = {}
    executor, blocks = config.executor, len(getattr(model, "blocks", ()))
    if blocks and not executor.checkpointing and executor.engine != "vmap":
        ways["executor.checkpointing = true"] = {"blocks": blocks}
    if one.gradients == 1:
        ways['executor.engine = "ghost"'] = {"gradients": 0}
    if one.adapters < one.moving:
        ways[f"model.lora_rank = {_RANK}"] = {"moving": one.adapters}
    if one.workers > 1:
        ways["executor.workers = 1"] = {"workers": 1}
    return ways


def _gb(size: int) -> str:
    return f"{size / 1e9:.2g} GB" if size < 10e9 else f"{size / 1e9:.0f} GB"

"""Chunks: how many units and tokens fit in memory at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from fedsim.clients.engines.pass_shape import PassShape
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.packing import num_rows
from fedsim.clients.models.dropout import drops, row_streams
from fedsim.execution import Unit
from fedsim.language_model import made_up_text
from fedsim.tensors import Tensors

# Maximum and minimum tokens of a pass, including padding. On a CPU more are not faster, and fewer
# make products slow (512 took a tenth longer with AVX2). A GPU launches about a hundred kernels per
# layer for any size of a pass.
CPU_TOKENS, CPU_LEAST = 4096, 1024
GPU_TOKENS = 32768
# Bytes for a chunk: half for per-unit gradients, half for activations that a forward pass keeps.
CPU_BYTES = 9 * 2**28
GPU_SHARE = 0.8
# Bytes per logit of a pass: logit and gradient in float32, the gradient in bfloat16 twice (plain
# and padded), and a margin.
_OF_LOGITS = 18


@dataclass(frozen=True)
class Limits:
    """Limits of a chunk and of its passes.

    Attributes:
        tokens: maximum tokens of a pass: sequences times the length of the longest.
        units: maximum number of units of a chunk.
        num_bytes: memory for a chunk's gradients and the tensors that it keeps between passes.
        bytes_per_unit: size of one unit's gradient, in bytes.
    """

    tokens: int
    units: int
    num_bytes: int
    bytes_per_unit: int

    def room(self, num_units: int) -> int:
        """Return the bytes that a chunk of `num_units` units may keep between passes."""
        return max(0, self.num_bytes - num_units * self.bytes_per_unit)


def memory_budget(device: torch.device, share: float = 1.0) -> int:
    """Return the bytes that a chunk may use on `device`, for a worker with `share` of a GPU.

    Depends on the device's total memory, not on free memory, so equal workers have equal passes.
    """
    if device.type != "cuda":
        return CPU_BYTES
    return int(GPU_SHARE * share * torch.cuda.get_device_properties(device).total_memory)


def limits_within(
    num_bytes: int, bytes_per_unit: int, bytes_per_token: int, device: torch.device
) -> Limits:
    """Return the largest limits with half of `num_bytes` each for units and for tokens."""
    tokens = num_bytes // 2 // max(1, bytes_per_token)
    if device.type == "cuda":
        tokens = max(1, min(GPU_TOKENS, tokens))
    else:
        tokens = min(CPU_TOKENS, max(CPU_LEAST, tokens))
    return Limits(
        tokens=tokens,
        units=max(1, num_bytes // 2 // max(1, bytes_per_unit)),
        num_bytes=max(0, num_bytes - tokens * bytes_per_token),
        bytes_per_unit=bytes_per_unit,
    )


def pass_bytes(model: OpenModel, parameters: Tensors, length: int) -> tuple[int, int]:
    """Return the memory of a pass: fixed bytes, and bytes per token.

    Counts the tensors that autograd keeps for made-up rows of `length` tokens; with checkpointing,
    those of one block.
    """
    leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    kept = [_kept(model, leaves, rows, length) for rows in (1, 2)]
    of_row = kept[1] - kept[0]
    return max(0, kept[0] - of_row), of_row // length + _OF_LOGITS * model.vocabulary_size


def _kept(model: OpenModel, leaves: Tensors, rows: int, length: int) -> int:
    """Return the bytes that the graph of `rows` rows keeps, without weights."""
    own = [*leaves.values(), *model.module.parameters(), *model.module.buffers()]
    weights = {value.untyped_storage().data_ptr() for value in own}
    held: list[torch.Tensor] = []  # kept alive: reused memory would be counted only once
    storages: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        held.append(tensor.detach())  # not the tensor, which would hold the graph that holds it
        return held[-1]

    texts = torch.cat([made_up_text(model, length, text) for text in range(rows)])
    streams = torch.zeros(rows, dtype=torch.int64, device=texts.device) if drops(model) else None
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with torch.enable_grad(), row_streams(streams), hooks:
        logits = model.logits(leaves, texts)
        of_graph = sum(storages.values())
        torch.autograd.grad(logits.sum(), list(leaves.values()), allow_unused=True)
    of_blocks_again = sum(storages.values()) - of_graph
    return of_graph + of_blocks_again // max(1, len(getattr(model, "blocks", ())))


def in_order(units: Sequence[Unit], row_tokens: int) -> list[Unit]:
    """Return the units sorted by number of rows, then by tokens, then by key."""
    return sorted(units, key=lambda u: (num_rows(u, row_tokens), sum(u.sizes), u.key))


def first_chunk(
    ordered: Sequence[Unit], limits: Limits, shape: PassShape, *, one_pass: bool
) -> list[Unit]:
    """Return the first units, as many as the limits allow, at least one.

    With `one_pass` the limit of tokens holds for all their sequences together. Otherwise a chunk
    takes several passes, and only the number of units is limited.
    """
    rows, length = 0, 1
    for index, unit in enumerate(ordered):
        rows, length = rows + len(unit.sizes), max(length, shape.padded(max(unit.sizes)))
        too_long = one_pass and rows * length > limits.tokens
        if index > 0 and (index == limits.units or too_long):
            return list(ordered[: _filling(ordered[:index], limits, shape)])
    return list(ordered)


def _filling(units: Sequence[Unit], limits: Limits, shape: PassShape) -> int:
    """Return how many of the first units fill whole passes; all units if none or few do.

    If passes have one size, the rest of a chunk would need a pass with empty rows.
    """
    lengths = {shape.padded(size) for unit in units for size in set(unit.sizes)}
    if not shape.one_size or len(lengths) > 1:
        return len(units)
    size = shape.most(lengths.pop(), limits.tokens)
    rows = list(accumulate(len(unit.sizes) for unit in units))
    fill = [count for count, end in enumerate(rows, start=1) if end % size == 0]
    return fill[-1] if fill and 2 * fill[-1] >= len(units) else len(units)

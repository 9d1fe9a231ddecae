"""Non-private training in large batches: a plain gradient sum, and steps of a training script."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.execution import Unit
from fedsim.experiments.benchmarks.engines.cases import Workload

BATCH_SIZES = (32, 64, 128)
_NOT_PREDICTED = -100
_TRIES = 2  # timed passes of a batch, each for compiled and not compiled


def floor(work: Workload, batch_size: int) -> list[torch.Tensor]:
    """Return the sum of all examples' gradients, as non-private training computes it.

    The loss is as cheap as possible: the logits are not copied, and labels mask positions without
    a prediction.

    Args:
        work: work with examples of one length.
        batch_size: sequences per batch.
    """
    tokens = torch.cat([unit.tokens for unit in work.units])
    total: list[torch.Tensor] = []
    for rows in torch.split(tokens.to(work.model.device), batch_size):
        leaves = {name: value.detach().requires_grad_() for name, value in work.parameters.items()}
        loss = summed_loss(work.model.logits(leaves, rows), rows)
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        if total:
            torch._foreach_add_(total, gradients)
        else:
            total = list(gradients)
    return total


def summed_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the sum over examples of full length of their mean loss per predicted token."""
    labels = F.pad(tokens[:, 1:], (0, 1), value=_NOT_PREDICTED)
    loss = F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=_NOT_PREDICTED, reduction="sum"
    )
    return loss / (tokens.shape[1] - 1)


class StrongFloor:
    """Training steps of a plain script; a call takes one step over all units.

    It uses the network's own weights and `backward`, "sdpa" attention and fused AdamW. On a GPU it
    uses bfloat16 autocast, with frozen weights in bfloat16. Blocks and loss are compiled if that
    was faster in a trial on one batch. Blocks are compiled one by one, so all of them share the
    compiled code.

    Args:
        work: work with examples of one length.
        batch_size: sequences per batch.
        compiles: whether to try compiling, which takes seconds to a minute.

    Attributes:
        details: `compiled`, and the seconds of a batch both ways, or why compiling failed.
    """

    def __init__(self, work: Workload, batch_size: int, *, compiles: bool = True) -> None:
        device = work.model.device
        tokens = torch.cat([unit.tokens for unit in work.units]).to(device)
        self._batches = torch.split(tokens, batch_size)
        self._on_gpu = device.type == "cuda"
        self.details: dict[str, Any] = {"compiled": False, "batch_size": batch_size}
        self._module, self._loss = self._network(work), summed_loss
        values = [value for value in self._module.parameters() if value.requires_grad]
        self._optimizer = torch.optim.AdamW(values, lr=1e-6, fused=True)
        self()  # allocates moments and gradient buffers
        if compiles:
            self._choose(self._network(work))
            gc.collect()  # free the other network, a reference cycle

    def __call__(self) -> None:
        """Take a step, and wait for a GPU to finish."""
        for rows in self._batches:
            self._backward(rows)
        self._optimizer.step()
        self._optimizer.zero_grad()
        finish(next(value for value in self._module.parameters() if value.requires_grad))

    def _backward(self, rows: torch.Tensor) -> None:
        with torch.autocast(rows.device.type, dtype=torch.bfloat16, enabled=self._on_gpu):
            loss = self._loss(self._module(rows, use_cache=False).logits, rows)
        loss.backward()  # type: ignore[no-untyped-call]

    def _choose(self, other: nn.Module) -> None:
        """Compile `other`, another copy of the network, and keep the faster of both."""
        plain = self._module, self._loss
        eager = self._seconds()
        torch.compiler.reset()  # torch keeps at most eight versions of a block, over all cases
        try:
            for blocks in other.modules():
                if isinstance(blocks, nn.ModuleList):
                    for block in blocks:
                        block.compile(dynamic=False)
            self._module, self._loss = other, torch.compile(summed_loss, dynamic=False)
            for rows in (self._batches[0], self._batches[-1]):  # the last batch may be smaller
                self._backward(rows)
            compiled = self._seconds()
        except Exception as error:  # no compiler, or an unsupported operation
            self._module, self._loss = plain
            self.details["not_compiled"] = f"{type(error).__name__}: {error}".splitlines()[0]
            return
        self.details |= {"batch_seconds": eager, "batch_seconds_compiled": compiled}
        if compiled < eager:
            self.details["compiled"] = True
            values = [value for value in other.parameters() if value.requires_grad]
            self._optimizer = torch.optim.AdamW(values, lr=1e-6, fused=True)
            self()
        else:
            self._module, self._loss = plain

    def _seconds(self) -> float:
        """Return the minimum seconds of one batch over some tries."""
        taken = []
        for _ in range(_TRIES):
            started = time.perf_counter()
            self._backward(self._batches[0])
            finish(next(v.grad for v in self._module.parameters() if v.grad is not None))
            taken.append(time.perf_counter() - started)
        self._module.zero_grad()
        return min(taken)

    def _network(self, work: Workload) -> nn.Module:
        """Return a copy of the network with the same trainable parameters and "sdpa" attention."""
        module = copy.deepcopy(cast(OpenModel, work.model).module)
        for part in module.modules():
            if isinstance(part, PreTrainedModel) and part._supports_sdpa:
                part.set_attn_implementation("sdpa")
        for name, value in module.named_parameters():
            value.requires_grad_(name in work.parameters)
            if self._on_gpu and not value.requires_grad:
                value.data = value.data.bfloat16()
        return module


def finish(value: torch.Tensor) -> None:
    """Wait for a GPU, by reading one number."""
    float(value.detach().flatten()[0])


def num_examples(units: Sequence[Unit]) -> int:
    """Return the number of examples of all units."""
    return sum(len(unit.lengths) for unit in units)

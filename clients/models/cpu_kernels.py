"""Faster CPU kernels: a fused GELU, and matrix products by oneDNN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.activations import NewGELUActivation

from fedsim.tensors import Tensors


def fuse_activations(module: PreTrainedModel) -> None:
    """Make GPT-2's GELU one kernel instead of eight passes over the widest activations.

    Changes `module` in place; it computes what it computed before, up to rounding. Attention is
    left alone: see `fedsim.clients.models.loading.open_pretrained`.
    """
    for part in module.modules():
        for name, child in part.named_children():
            if type(child) is NewGELUActivation:
                setattr(part, name, nn.GELU(approximate="tanh"))


_CPUINFO = Path("/proc/cpuinfo")
# oneDNN takes half a millisecond to prepare for a new size: products of few rows or small weights
# do not gain that back. A pass of an engine has at least so many rows (`PassShape`), so that its
# weights alone decide by which library it is computed, not who shares it.
_LEAST_ROWS = 192
_LEAST_WEIGHTS = 2**16


def onednn_products(parameters: Tensors) -> AbstractContextManager[object]:
    """Return a context in which products are computed by oneDNN where that is faster.

    Args:
        parameters: of the network; if one of them wants a gradient, or is not on a CPU, nothing
            is changed. Nor is it under `torch.autocast`, whose products are not of float32.
    """
    if not is_faster() or torch.is_autocast_enabled("cpu"):
        return nullcontext()
    frozen = all(not v.requires_grad and v.device.type == "cpu" for v in parameters.values())
    return _ByConvolution() if frozen else nullcontext()


@cache
def is_faster() -> bool:
    """Whether this is a processor on which oneDNN beats MKL; known by its model, never timed."""
    both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not both or torch.backends.cpu.get_cpu_capability() != "AVX512" or not _CPUINFO.exists():
        return False
    return "AuthenticAMD" in _CPUINFO.read_text(encoding="utf-8", errors="replace")


class _ByConvolution(TorchFunctionMode):
    """Mode that replaces `F.linear`, `addmm` and `matmul`."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 (whatever torch returns)
        """Compute large products by oneDNN, and all else by torch."""
        if not kwargs:
            if func is F.linear:
                return _linear(*args)
            if func is torch.addmm:
                return _addmm(*args)
            if func in (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__):
                return _matmul(*args)
        return func(*args, **(kwargs or {}))


def _linear(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    if weight.is_contiguous() and _worthwhile(inputs, weight):
        return _convolved(F.conv2d, inputs, weight, bias)
    return F.linear(inputs, weight, bias)


def _addmm(bias: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if bias.dim() == 1 and weight.is_contiguous() and _worthwhile(inputs, weight):
        return _convolved(F.conv_transpose2d, inputs, weight, bias)
    return torch.addmm(bias, inputs, weight)


def _matmul(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if weight.dim() == 2 and _worthwhile(inputs, weight):
        if weight.is_contiguous():
            return _convolved(F.conv_transpose2d, inputs, weight, None)
        if weight.T.is_contiguous():
            return _convolved(F.conv2d, inputs, weight.T, None)
    return torch.matmul(inputs, weight)


def _worthwhile(inputs: torch.Tensor, weight: torch.Tensor) -> bool:
    if weight.dim() != 2 or inputs.dim() < 2:
        return False
    if {inputs.dtype, weight.dtype} != {torch.float32} or inputs.device.type != "cpu":
        return False
    rows = inputs.numel() // max(1, inputs.shape[-1])
    return rows >= _LEAST_ROWS and weight.numel() >= _LEAST_WEIGHTS


def _convolved(
    convolve: Callable[..., torch.Tensor],
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """Return the product, (..., columns).

    Args:
        convolve: `conv2d` for weights that stand as (columns, width), `conv_transpose2d` for
            (width, columns).
        inputs: (..., width).
        weight: contiguous.
        bias: (columns,) or None.
    """
    # (1, channels, points, 1), channels side by side: views of the matrices as they are.
    points = inputs.reshape(1, -1, 1, inputs.shape[-1]).permute(0, 3, 1, 2)
    output = convolve(points, weight[..., None, None], bias).permute(0, 2, 3, 1)
    return output.reshape(*inputs.shape[:-1], output.shape[-1])

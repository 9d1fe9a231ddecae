"""Parameters, updates and sums as one plain value: a dict from parameter name to tensor.

Every function here is pure: it returns new tensors and leaves its arguments alone, except those
whose underscore says that they write into their first argument.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import torch

Tensors = Mapping[str, torch.Tensor]
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_PART = 2**16  # entries of a norm or a sum that are float64 at once
_FEW = 2**22  # entries in all that one thread is done with as soon as many are
# Entries of a sum that a thread adds at once, and those that are worth another thread: with fewer,
# threads wait for one another.
_FOLDED, _A_THREADS = 2**17, 2**21


def zeros_like(layout: Tensors, dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    """Return contiguous zeros with the names, shapes and devices of `layout`, and its dtypes.

    Args:
        layout: what they look like.
        dtype: in place of the layout's.
    """
    return {
        name: torch.zeros_like(value, dtype=dtype, memory_format=torch.contiguous_format)
        for name, value in layout.items()
    }


def block_of_zeros(layout: Tensors, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return what `zeros_like` does, of a layout on one device, as views of one block of memory.

    What is made and freed in each round then leaves one hole, which the next is made in, and not
    hundreds between what stays, which nothing quite fits.
    """
    sizes = [value.numel() for value in layout.values()]
    device = next(iter(layout.values())).device
    parts = torch.split(torch.zeros(sum(sizes), dtype=dtype, device=device), sizes)
    return {
        name: part.view(value.shape)
        for (name, value), part in zip(layout.items(), parts, strict=True)
    }


def check_same_layout(expected: Tensors, given: Tensors) -> None:
    """Raise `ValueError` unless both have the same names and, name by name, the same shapes."""
    if expected.keys() != given.keys():
        missing = sorted(expected.keys() - given.keys())
        unknown = sorted(given.keys() - expected.keys())
        raise ValueError(f"parameter names differ: missing {missing}, unknown {unknown}")
    for name, value in expected.items():
        if value.shape != given[name].shape:
            raise ValueError(
                f"parameter {name!r} has shape {tuple(given[name].shape)}, "
                f"expected {tuple(value.shape)}"
            )


def add(left: Tensors, right: Tensors) -> dict[str, torch.Tensor]:
    """Return left + right, name by name; a different layout is a `ValueError`."""
    check_same_layout(left, right)
    return {name: value + right[name] for name, value in left.items()}


def add_(total: dict[str, torch.Tensor], update: Tensors, factors: Mapping[str, float]) -> None:
    """Add factor * update into `total`, tensor by tensor, in the precision of `total`."""
    check_same_layout(total, update)
    for name, value in total.items():
        value.add_(update[name], alpha=factors[name])


def as_float32_(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float32, and use it up: a float64 one on the CPU is overwritten.

    A copy of a table of words, the largest tensor of a model, would be memory at its peak.

    Examples:
        >>> as_float32_(torch.tensor([1.5, -2.0]).double())
        tensor([ 1.5000, -2.0000])
    """
    if value.dtype != torch.float64 or value.device.type != "cpu" or not value.is_contiguous():
        return value.float()
    wide = value.view(-1)
    narrow = wide.view(torch.float32)[: len(wide)]
    narrow[:_PART] = wide[:_PART].float()
    done = _PART
    while done < len(wide):  # as many again: these lie behind where they are written to
        more = slice(done, 2 * done)
        narrow[more] = wide[more]
        done *= 2
    return narrow.view(value.shape)


def fold_(total: Tensors, sums: Sequence[Tensors]) -> list[float]:
    """Add `sums`, one after the other, into `total` (float64), and return the L2 norm of each.

    All are on the CPU. Part by part, which stays in the cache, by threads: memory is passed over
    once, and the total's bits depend neither on the parts nor on the threads.

    Examples:
        >>> total = {"w": torch.zeros(2).double()}
        >>> fold_(total, [{"w": torch.tensor([3.0, 4.0])}, {"w": torch.ones(2)}])[0]
        5.0
        >>> total["w"].tolist()
        [4.0, 5.0]
    """
    for given in sums:
        check_same_layout(total, given)
    flat = [
        (value.view(-1), [given[name].contiguous().view(-1) for given in sums])
        for name, value in total.items()
    ]
    size = _FOLDED * max(1, torch.get_num_threads() // 4)  # many wait for each other's Python
    parts = [
        (whole[start : start + size], [given[start : start + size] for given in added])
        for whole, added in flat
        for start in range(0, len(whole), size)
    ]

    def work(of_a_thread: Sequence[tuple[torch.Tensor, list[torch.Tensor]]]) -> list[list[float]]:
        double = torch.empty(size, dtype=torch.float64)
        norms: list[list[float]] = [[] for _ in sums]
        for whole, added in of_a_thread:
            for given, lengths in zip(added, norms, strict=True):
                wide = double[: len(given)].copy_(given)
                lengths.append(math.sqrt(float(torch.dot(wide, wide))))
                whole.add_(wide)
        return norms

    shares = by_threads(work, parts, sum(len(whole) for whole, _ in flat))
    return [
        math.hypot(*sorted(length for share in shares for length in share[number]))
        for number in range(len(sums))
    ]


def by_threads(
    work: Callable[[Sequence[_Item]], _Result], items: Sequence[_Item], entries: int
) -> list[_Result]:
    """Return what `work` returns for each thread's share of items that have so many entries.

    There are as many threads as torch has, or fewer where entries are few. Each of torch's
    operations has one of them.
    """
    threads = min(torch.get_num_threads(), 1 + entries // _A_THREADS)
    with one_thread_an_operation():
        if threads == 1:
            return [work(items)]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(work, [items[first::threads] for first in range(threads)]))


def threads_by_size(tensors: Tensors) -> AbstractContextManager[None]:
    """Give torch's operations on tensors one thread inside the block where entries are few in all.

    Cut among threads, each of them would wait for a thread to wake: milliseconds, where another
    process has its core or where sixteen are there.
    """
    few = sum(value.numel() for value in tensors.values()) < _FEW
    return one_thread_an_operation() if few else nullcontext()


@contextmanager
def one_thread_an_operation() -> Iterator[None]:
    """Keep torch from cutting an operation among threads, which have a part each already."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def scale(tensors: Tensors, factor: float) -> dict[str, torch.Tensor]:
    """Return factor * tensors.

    Examples:
        >>> scale({"a": torch.tensor([1.0, 2.0])}, 0.5)["a"].tolist()
        [0.5, 1.0]
    """
    return {name: value * factor for name, value in tensors.items()}


def l2_norm(tensors: Tensors) -> float:
    """Return the L2 norm over all entries of all tensors, summed in float64.

    Float64 because a clip decides by this number: a float32 sum of many squares can read
    low by more than the rounding that the clip allows for. An empty dict has norm 0.

    Examples:
        >>> l2_norm({"a": torch.tensor([3.0]), "b": torch.tensor([[0.0, 4.0]])})
        5.0
    """
    return math.hypot(*(norm for parts in _norms(tensors) for norm in parts))


def l2_norms(tensors: Tensors) -> list[float]:
    """Return the L2 norm of each tensor; see `l2_norm`."""
    return [math.hypot(*parts) for parts in _norms(tensors)]


def _norms(tensors: Tensors) -> list[list[float]]:
    """Return the norms of parts of each tensor; a GPU is waited for once, not for each."""
    if tensors and not any(value.is_cpu for value in tensors.values()):
        norms = [torch.linalg.vector_norm(v, dtype=torch.float64) for v in tensors.values()]
        return [[norm] for norm in torch.stack(norms).tolist()]
    return [_norms_of_parts(value) for value in tensors.values()]


def _norms_of_parts(value: torch.Tensor) -> list[float]:
    """Return the norms of parts of a tensor that stay in the cache while they become float64.

    Torch converts and adds in one loop without vector instructions, which takes four times as long,
    and one sum over 10⁹ equal entries is low by 2·10⁻⁹.
    """
    if value.numel() <= _PART:
        return [float(torch.linalg.vector_norm(value, dtype=torch.float64))]
    return [
        float(torch.linalg.vector_norm(part.double()))
        for part in torch.split(value.detach().reshape(-1), _PART)
    ]


def all_finite(tensors: Tensors) -> bool:
    """Return whether no entry is NaN or infinite."""
    filled = [value for value in tensors.values() if value.numel()]
    ends = (end for value in filled for end in torch.aminmax(value))  # a NaN is both of them
    if filled and not any(value.is_cpu for value in filled):  # a GPU is waited for once
        return bool(torch.stack([end.double() for end in ends]).isfinite().all())
    return all(math.isfinite(float(end)) for end in ends)


def parameters_digest(tensors: Tensors) -> str:
    """Return a SHA-256 (hex) of the names, shapes, dtypes and bits of tensors.

    The order of the dict, the device and the strides do not matter; -0.0 and 0.0 differ. One
    tensor at a time is on the CPU, and none is copied there that is contiguous already. One of
    bfloat16 counts as the same numbers in float32: frozen weights may be kept in either.

    Examples:
        >>> parameters_digest({"a": torch.zeros(2)}) == parameters_digest({"a": torch.zeros(2, 1)})
        False
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        value = value.float() if value.dtype == torch.bfloat16 else value
        digest.update(json.dumps([name, list(value.shape), str(value.dtype)]).encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()

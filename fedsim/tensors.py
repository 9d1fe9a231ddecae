"""Arithmetic on parameters, updates and sums: dicts from parameter name to tensor.

Functions return new tensors and do not change their arguments. Functions whose name ends in "_"
write into their first argument.
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

_PART = 2**16  # entries converted to float64 at a time, for a norm or a sum
_FEW = 2**22  # total entries below which one thread is as fast as many
# Entries that a thread adds at a time; entries per thread, as fewer make threads wait.
_FOLDED, _A_THREADS = 2**17, 2**21


def zeros_like(layout: Tensors, dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    """Return contiguous zeros with the names, shapes and devices of `layout`.

    Args:
        layout: tensors to imitate.
        dtype: dtype of the zeros; None for that of each tensor in `layout`.
    """
    return {
        name: torch.zeros_like(value, dtype=dtype, memory_format=torch.contiguous_format)
        for name, value in layout.items()
    }


def block_of_zeros(layout: Tensors, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the zeros of `zeros_like` as views of one block of memory.

    All tensors of `layout` must be on one device. One block per round is easy to reuse; hundreds
    of small blocks would fragment the memory.
    """
    sizes = [value.numel() for value in layout.values()]
    device = next(iter(layout.values())).device
    parts = torch.split(torch.zeros(sum(sizes), dtype=dtype, device=device), sizes)
    return {
        name: part.view(value.shape)
        for (name, value), part in zip(layout.items(), parts, strict=True)
    }


def check_same_layout(expected: Tensors, given: Tensors) -> None:
    """Raise `ValueError` unless both have the same names and the same shape for each name."""
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
    """Return left + right, name by name; raise `ValueError` if the layouts differ."""
    check_same_layout(left, right)
    return {name: value + right[name] for name, value in left.items()}


def add_(total: dict[str, torch.Tensor], update: Tensors, factors: Mapping[str, float]) -> None:
    """Add factor * update into `total`, tensor by tensor, in the precision of `total`."""
    check_same_layout(total, update)
    for name, value in total.items():
        value.add_(update[name], alpha=factors[name])


def as_float32_(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float32; a float64 tensor on the CPU is overwritten.

    A copy of the embedding table, the largest tensor of a model, would raise peak memory.

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
    while done < len(wide):  # each step doubles: its reads lie behind its writes in memory
        more = slice(done, 2 * done)
        narrow[more] = wide[more]
        done *= 2
    return narrow.view(value.shape)


def fold_(total: Tensors, sums: Sequence[Tensors]) -> list[float]:
    """Add each of `sums` into `total` (float64), in order, and return the L2 norm of each.

    All tensors are on the CPU. Threads work on parts that fit in the cache, so memory is read once.
    The bits of the total do not depend on the parts or the threads.

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
    size = _FOLDED * max(1, torch.get_num_threads() // 4)  # larger parts: less waiting for the GIL
    parts = [
        (whole[start : start + size], [given[start : start + size] for given in added])
        for whole, added in flat
        for start in range(0, len(whole), size)
    ]

    def work(share: Sequence[tuple[torch.Tensor, list[torch.Tensor]]]) -> list[list[float]]:
        double = torch.empty(size, dtype=torch.float64)
        norms: list[list[float]] = [[] for _ in sums]
        for whole, added in share:
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
    """Return the results of `work`, one per thread, each on that thread's share of `items`.

    Args:
        work: function of a share of the items.
        items: items to divide among threads.
        entries: total number of entries of the items; few entries get fewer threads than torch has.
    """
    threads = min(torch.get_num_threads(), 1 + entries // _A_THREADS)
    with one_thread_an_operation():
        if threads == 1:
            return [work(items)]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(work, [items[first::threads] for first in range(threads)]))


def threads_by_size(tensors: Tensors) -> AbstractContextManager[None]:
    """Limit torch to one thread inside the block if `tensors` have few entries in total.

    With few entries, the threads take longer to wake than to compute: up to milliseconds on a busy
    machine or one with many cores.
    """
    few = sum(value.numel() for value in tensors.values()) < _FEW
    return one_thread_an_operation() if few else nullcontext()


@contextmanager
def one_thread_an_operation() -> Iterator[None]:
    """Limit each torch operation to one thread inside the block."""
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

    Clips depend on this norm: a float32 sum of many squares can be too small by more than the
    rounding margin of a clip. An empty dict has norm 0.

    Examples:
        >>> l2_norm({"a": torch.tensor([3.0]), "b": torch.tensor([[0.0, 4.0]])})
        5.0
    """
    return math.hypot(*(norm for parts in _norms(tensors) for norm in parts))


def l2_norms(tensors: Tensors) -> list[float]:
    """Return the L2 norm of each tensor; see `l2_norm`."""
    return [math.hypot(*parts) for parts in _norms(tensors)]


def _norms(tensors: Tensors) -> list[list[float]]:
    """Return the norms of parts of each tensor; synchronise a GPU only once."""
    if tensors and not any(value.is_cpu for value in tensors.values()):
        norms = [torch.linalg.vector_norm(v, dtype=torch.float64) for v in tensors.values()]
        return [[norm] for norm in torch.stack(norms).tolist()]
    return [_norms_of_parts(value) for value in tensors.values()]


def _norms_of_parts(value: torch.Tensor) -> list[float]:
    """Return the norms of cache-sized parts of a tensor, each converted to float64.

    Torch's norm of a whole tensor converts and adds without vector instructions and takes four
    times as long. Its sum over 10⁹ equal entries is too small by 2·10⁻⁹.
    """
    if value.numel() <= _PART:
        return [float(torch.linalg.vector_norm(value, dtype=torch.float64))]
    return [
        float(torch.linalg.vector_norm(part.double()))
        for part in torch.split(value.detach().reshape(-1), _PART)
    ]


def all_finite(tensors: Tensors) -> bool:
    """Return whether no entry is NaN or infinite; tensors on workers have a field for that."""
    if (known := getattr(tensors, "finite", None)) is not None:
        return bool(known)
    filled = [value for value in tensors.values() if value.numel()]
    ends = (end for value in filled for end in torch.aminmax(value))  # a NaN becomes both ends
    if filled and not any(value.is_cpu for value in filled):  # synchronise a GPU only once
        return bool(torch.stack([end.double() for end in ends]).isfinite().all())
    return all(math.isfinite(float(end)) for end in ends)


def parameters_digest(tensors: Tensors) -> str:
    """Return a SHA-256 (hex) of the names, shapes, dtypes and bits of tensors.

    The digest ignores the order of the dict, the device and the strides; -0.0 and 0.0 differ. A
    bfloat16 tensor has the digest of the same numbers in float32, as frozen weights may be kept in
    either. Tensors move to the CPU one at a time; contiguous CPU tensors are not copied.

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

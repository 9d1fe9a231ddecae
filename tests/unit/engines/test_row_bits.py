"""Sizes of passes that give a row the same bits, by kernels that are made up here."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch

from fedsim.clients.engines.cross_entropy import Batch
from fedsim.clients.engines.pass_shape import PassShape
from fedsim.clients.engines.per_example import row_bits
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.gradient_terms import Product, Term
from fedsim.clients.engines.per_example.passes import passes
from fedsim.clients.engines.per_example.row_bits import RowBits
from fedsim.execution import Unit
from fedsim.tensors import Tensors

LENGTH, MAX_TOKENS = 8, 160  # 20 rows
TOKENS = 64  # of the pass whose bits count: 8 rows
WORDS = 50


class Model:
    """As much of a model as is asked of it."""

    name, vocabulary_size, device, dropout = "made up", WORDS, torch.device("cpu"), 0.0


def own(values: torch.Tensor) -> torch.Tensor:
    return values


def by_place(values: torch.Tensor) -> torch.Tensor:
    values[-1] += 1.0
    return values


def by_size(values: torch.Tensor) -> torch.Tensor:
    return values + (len(values) == 12)


def by_small_size(values: torch.Tensor) -> torch.Tensor:
    return values + (len(values) < 4)


def by_large_size(values: torch.Tensor) -> torch.Tensor:
    return values + (len(values) > 8)


def by_others(values: torch.Tensor) -> torch.Tensor:
    return values + 2.0**-20 * values.roll(1, dims=0)


def not_finite(values: torch.Tensor) -> torch.Tensor:
    return values * float("nan")


Kernel = Callable[[torch.Tensor], torch.Tensor]


def found(kernel: Kernel, monkeypatch: pytest.MonkeyPatch, max_tokens: int = MAX_TOKENS) -> RowBits:
    def run(
        _model: object,
        _layers: object,
        parameters: Tensors,
        batch: Batch,
        sink: Callable[[str, Term], None],
    ) -> torch.Tensor:
        rows = batch.tokens.float()[:, :, None] * parameters["w"]
        sink("w", Product(rows, kernel(rows.clone())))
        return rows.sum(dim=(1, 2))

    monkeypatch.setattr(row_bits, "run", run)
    monkeypatch.setattr(row_bits, "_tokens", lambda _device, _max_tokens: TOKENS)
    bits = RowBits(cast(OpenModel, Model()), (), max_tokens)
    bits.hold(LENGTH, {"w": torch.zeros(3)})
    return bits


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (own, (1, 2, 4, 8, 12, 16)),
        (by_size, (1, 2, 4, 8, 16)),
        (by_small_size, (4, 8, 12, 16)),
        (by_large_size, (1, 2, 4, 8)),
        (by_place, ()),
        (by_others, ()),
        (not_finite, ()),
    ],
)
def test_sizes_are_those_that_give_a_row_its_bits(
    kernel: Kernel,
    expected: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bits = found(kernel, monkeypatch)
    assert bits.sizes == {LENGTH: expected}
    assert bits.hold(LENGTH, {"w": torch.zeros(3)}) == bool(expected)


def test_a_worker_with_less_memory_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who else is there decides which worker computes a user: sizes are of one pass's bits."""
    for max_tokens, expected in ((200, (1, 2, 4, 8)), (70, (1, 2, 4, 8)), (63, ())):
        assert found(by_large_size, monkeypatch, max_tokens).sizes == {LENGTH: expected}


def test_parameters_that_are_zero_hide_no_order_of_summation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All products with an adapter's zeros are zero, whatever the kernel."""
    assert found(lambda values: by_place(values * 3.0), monkeypatch).sizes == {LENGTH: ()}
    assert found(lambda values: values * values.norm(), monkeypatch).sizes == {LENGTH: ()}


@pytest.mark.parametrize("counts", [[1], [5, 5, 5], [12] * 3, [30, 1], [2] * 40])
def test_passes_have_the_sizes_that_were_found(counts: list[int]) -> None:
    """Whoever else is there: a user in front shifts the others, and the sizes stay."""
    shape = PassShape(64, sizes={32: (3, 12)})
    for front in ([], [1], [7]):
        units = [
            Unit(key, torch.ones(count, 4, dtype=torch.int64), torch.full((count,), 4))
            for key, count in enumerate([*front, *counts])
        ]
        cut = list(passes(units, 10_000, torch.device("cpu"), torch.float32, shape=shape))
        assert {tuple(part.batch.tokens.shape) for part in cut} <= {(3, 32), (12, 32)}
        rows = sum(sum(part.segments.counts) for part in cut)
        assert rows == sum(front) + sum(counts)
        assert all(float(part.batch.shares[sum(part.segments.counts) :].sum()) == 0 for part in cut)

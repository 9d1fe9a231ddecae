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
WORDS = 50


class Model:
    """As much of a model as is asked of it."""

    name, vocabulary_size, device, dropout = "made up", WORDS, torch.device("cpu"), 0.0

    def initial_parameters(self) -> dict[str, torch.Tensor]:
        return {"w": torch.zeros(3)}


Kernel = Callable[[torch.Tensor], torch.Tensor]


def own(values: torch.Tensor) -> torch.Tensor:
    return values


def by_place(values: torch.Tensor) -> torch.Tensor:
    values[-1] += 2.0**-20
    return values


def by_others(values: torch.Tensor) -> torch.Tensor:
    return values + 2.0**-20 * values.roll(1, dims=0)


def of_one_text(values: torch.Tensor) -> torch.Tensor:
    """Moves one number of one text at one place."""
    values[5, 2] += 2.0**-20 * (values[5, 2] < values[:, 2].mean())
    return values


def not_finite(values: torch.Tensor) -> torch.Tensor:
    return values * float("nan")


def found(kernel: Kernel, monkeypatch: pytest.MonkeyPatch, max_tokens: int = MAX_TOKENS) -> RowBits:
    def run(
        _model: object,
        _layers: object,
        parameters: Tensors,
        batch: Batch,
        sink: Callable[[str, Term], None],
    ) -> torch.Tensor:
        assert batch.tokens.shape[1] == LENGTH
        rows = batch.tokens.float()[:, :, None] * parameters["w"]
        sink("w", Product(rows, kernel(rows.clone())))
        return rows.sum(dim=(1, 2))

    monkeypatch.setattr(row_bits, "run", run)
    bits = RowBits(cast(OpenModel, Model()), (), max_tokens)
    bits.hold(LENGTH)
    return bits


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [(own, 16), (by_place, 0), (by_others, 0), (of_one_text, 0), (not_finite, 0)],
)
def test_passes_are_shared_where_rows_have_their_own_bits(
    kernel: Kernel, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though all parameters are zero at the start, as an adapter's are."""
    bits = found(kernel, monkeypatch)
    assert bits.sizes == {LENGTH: expected}
    assert bits.hold(LENGTH) == (expected > 0)


@pytest.mark.parametrize(("max_tokens", "expected"), [(7, 0), (8, 1), (31, 3), (1 << 10, 128)])
def test_the_one_size_is_of_the_limit(
    max_tokens: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(own, monkeypatch, max_tokens).sizes == {LENGTH: expected}


@pytest.mark.parametrize("counts", [[1], [5, 5, 5], [12] * 3, [30, 1], [2] * 40])
def test_passes_have_the_size_that_was_found(counts: list[int]) -> None:
    """Whoever else is there: a user in front shifts the others, and the size stays."""
    shape = PassShape(64, sizes={32: 12})
    for front in ([], [1], [7]):
        units = [
            Unit(key, torch.ones(count, 4, dtype=torch.int64), torch.full((count,), 4))
            for key, count in enumerate([*front, *counts])
        ]
        cut = list(passes(units, 10_000, torch.device("cpu"), torch.float32, shape=shape))
        assert {tuple(part.batch.tokens.shape) for part in cut} == {(12, 32)}
        rows = sum(sum(part.segments.counts) for part in cut)
        assert rows == sum(front) + sum(counts)
        assert all(float(part.batch.shares[sum(part.segments.counts) :].sum()) == 0 for part in cut)

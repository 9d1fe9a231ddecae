"""Products held over passes are formed as one sum over all positions of each unit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsim.clients.engines.per_example.batched import Buffers
from fedsim.clients.engines.per_example.gradient_terms import Product, Segments
from fedsim.clients.engines.per_example.materialised import DeferredProducts, Materialised
from fedsim.clients.models.mcmahan_lstm import NormalisedRows, inverse_norms

SIDES = ("left", "right")

# For each pass: every unit's number of sequences, the sequences' length, and how often the
# parameter is used; and whether what is held is formed after it.
a_pass = st.tuples(
    st.lists(st.integers(0, 3), min_size=5, max_size=5),
    st.integers(1, 4),
    st.integers(1, 2),
    st.booleans(),
)


@given(st.lists(a_pass, min_size=1, max_size=4), st.integers(1, 5))
def test_each_unit_gets_all_its_positions_and_no_others(
    given_passes: list[tuple[list[int], int, int, bool]], num_units: int
) -> None:
    torch.manual_seed(0)
    wide, narrow = 4, 3
    expected = torch.zeros(num_units, wide, narrow, dtype=torch.float64)
    formed = torch.full((num_units, wide, narrow), torch.nan, dtype=torch.float64)
    held = DeferredProducts(num_units)
    seen = torch.zeros(num_units, dtype=torch.bool)
    for of_all, length, uses, now in given_passes:
        counts = of_all[:num_units]
        segments = Segments(counts, whole=False)
        for _ in range(uses):
            sides = [torch.randn(sum(counts), length, size).double() for size in (wide, narrow)]
            held.add("weight", Product(sides[0], sides[1]), segments)
            of_units = [torch.split(side, counts) for side in sides]
            for place, (left, right) in enumerate(zip(*of_units, strict=True)):
                expected[place] += torch.einsum("rla,rlb->ab", left, right)
        seen |= torch.tensor(counts) > 0
        if now:
            held.write(lambda _name: formed)
            assert held.num_bytes == 0
    held.write(lambda _name: formed)
    torch.testing.assert_close(formed[seen], expected[seen])
    assert bool(formed[~seen].isnan().all())  # nobody else's place was written to


def test_bytes_are_counted() -> None:
    held = DeferredProducts(2)
    left, right = torch.zeros(3, 5, 4), torch.zeros(3, 5, 2)
    held.add("weight", Product(left, right), Segments([1, 2], whole=False))
    assert held.num_bytes == left.nbytes + right.nbytes


@pytest.mark.parametrize(("room", "num_formed"), [(0, 3), (200, 1), (2**20, 0)])
def test_no_more_is_held_from_pass_to_pass_than_there_is_room(
    room: int, num_formed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    formed: list[int] = []
    honest = DeferredProducts.write

    def noted(self: DeferredProducts, buffer: Callable[[str], torch.Tensor]) -> None:
        formed.append(self.num_bytes)
        honest(self, buffer)

    monkeypatch.setattr(DeferredProducts, "write", noted)
    gradients = Materialised(Buffers(), {"weight": torch.zeros(4, 3)}, 2, room)
    uses = []
    for _ in range(4):
        gradients.start_pass(Segments([1, 1], whole=False))
        uses.append(Product(torch.randn(2, 2, 4), torch.randn(2, 2, 3)))  # 112 bytes
        gradients("weight", uses[-1])
    assert len(formed) == num_formed
    left, right = (torch.cat([getattr(use, side) for use in uses], dim=1) for side in SIDES)
    expected = (left.mT @ right).double().square().sum(dim=(1, 2))
    torch.testing.assert_close(gradients.squares()[:, 0], expected, rtol=1e-5, atol=0.0)


def test_norms_are_those_of_what_a_chain_has_made_of_the_products() -> None:
    """Also where nothing else is added afterwards, and where the norm was taken while forming."""
    torch.manual_seed(0)
    weight = torch.randn(4, 3, dtype=torch.float64)
    left, right = (torch.randn(2, 5, size, dtype=torch.float64) for size in weight.shape)
    chain = NormalisedRows(weight, inverse_norms(weight))
    gradients = Materialised(Buffers(), {"table": weight}, num_units=2, room=0)
    gradients.start_pass(Segments([1, 1], whole=True))
    gradients("table", Product(left, right, chain))
    expected = left.mT @ right
    for one in expected:
        chain(one)
    squares = expected.square().sum(dim=(1, 2))
    torch.testing.assert_close(gradients.squares()[:, 0], squares)
    total = torch.zeros_like(weight)
    gradients.add_weighted({"table": total}, torch.ones(2, 1, dtype=torch.float64))
    torch.testing.assert_close(total, expected.sum(dim=0))

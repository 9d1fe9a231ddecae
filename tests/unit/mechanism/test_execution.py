"""Units, accumulators and shards by hand: what is refused, and what every count counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedsim.clipping import Clip, FlatClip, NormalisedClip, PerLayerClip
from fedsim.execution import Accumulator, Unit, Update, shards
from fedsim.tensors import l2_norm

TOKENS, LENGTHS = torch.zeros(1, 2, dtype=torch.int64), torch.tensor([2])
LAYOUT = {"a": torch.zeros(2), "b": torch.zeros(1)}


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_a_weight_is_a_share(weight: float) -> None:
    assert Unit(3, TOKENS, LENGTHS, weight).weight == weight
    assert Unit(3, TOKENS, LENGTHS).weight == 1.0


@pytest.mark.parametrize("weight", [-1e-9, 1.0 + 1e-9, 2.0, math.nan, math.inf])
def test_a_weight_that_is_no_share_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match=r"^weight = .* of unit 3: must be in \[0, 1\]"):
        Unit(3, TOKENS, LENGTHS, weight)


@pytest.mark.parametrize(
    ("tokens", "lengths", "streams"),
    [
        (TOKENS, [3], None),  # into the next user's
        (TOKENS, [0], None),
        (TOKENS, [2, 2], None),
        (torch.zeros(2, 2, dtype=torch.int64), [2], None),
        (torch.zeros(2, dtype=torch.int64), [2, 2], None),
        (TOKENS, [2], [1, 2]),
        (TOKENS, [[2]], None),
        (TOKENS, [1.5], None),
        (torch.tensor(1), [], None),
    ],
)
def test_a_unit_whose_parts_do_not_fit_each_other_is_refused(
    tokens: torch.Tensor, lengths: list[float], streams: list[int] | None
) -> None:
    with pytest.raises(ValueError, match=r"^tokens of unit 3: have shape .*, with lengths of"):
        Unit(
            3,
            tokens,
            torch.tensor(lengths),
            streams=None if streams is None else torch.tensor(streams),
        )
    assert Unit(3, TOKENS[:0], LENGTHS[:0]).sizes == []


def update(a: list[float], b: float, loss: float = 0.5) -> Update:
    return Update({"a": torch.tensor(a), "b": torch.tensor([b])}, loss, num_gradients=2)


@pytest.mark.parametrize("normalise", [False, True])
def test_a_sum_by_hand(normalise: bool) -> None:
    flat = FlatClip(l2_clip_norm=5.0)
    total = Accumulator(LAYOUT, NormalisedClip(clip=flat) if normalise else flat)
    total.add(update([3.0, 0.0], 0.0), 0.5)  # within
    total.add(update([6.0, 8.0], 0.0, loss=math.inf), 1.0)  # over, by two
    total.add(update([math.nan, 0.0], 1.0, loss=math.nan), 0.25)  # counts as zero, and within
    total.add(update([1e9, 0.0], math.inf), 1.0)
    found, unit = total.total(), 5.0 if normalise else 1.0
    assert found.values["a"].tolist() == pytest.approx([4.5 / unit, 4.0 / unit], rel=1e-8)
    assert found.values["b"].tolist() == [0.0]
    assert found.values["a"].dtype == torch.float64
    assert found.weight == 2.75
    assert (found.num_units, found.num_non_finite, found.num_unclipped) == (4, 2, 3)
    assert (found.num_gradients, found.loss) == (8, 1.0)


@pytest.mark.parametrize("clip", [FlatClip(l2_clip_norm=1.0), PerLayerClip.evenly(1.0, "ab")])
def test_an_update_beyond_the_largest_norm_counts_as_not_finite(clip: Clip) -> None:
    """Of one entry, whose norm is a number and its square is not; and of two."""
    total = Accumulator(LAYOUT, clip)
    for a, b in ([[0.1, 0.0], 1e160], [[1e160, 1e160], 0.1], [[0.1, 0.1], 1e150]):
        values = {k: torch.tensor(v, dtype=torch.float64) for k, v in (("a", a), ("b", [b]))}
        total.add(Update(values, 0.0, num_gradients=1), 1.0)
    found = total.total()
    assert (found.num_units, found.num_non_finite, found.weight) == (3, 2, 3.0)
    assert l2_norm(found.values) <= 1.0


def test_an_empty_sum_is_zero() -> None:
    found = Accumulator(LAYOUT, FlatClip(l2_clip_norm=1.0)).total()
    counts = (found.weight, found.num_units, found.num_non_finite, found.num_gradients, found.loss)
    assert counts == (0.0, 0, 0, 0, 0.0)
    assert found.num_unclipped == 0
    assert found.values["a"].tolist() == [0.0, 0.0]


def test_shards_hold_everybody_once_in_order() -> None:
    pieces = [piece.tolist() for piece in shards(np.arange(7), 3)]
    assert pieces == [[0, 1, 2], [3, 4, 5], [6]]
    assert [piece.tolist() for piece in shards(np.arange(2), 1)] == [[0], [1]]
    assert list(shards(np.arange(0), 3)) == []

"""Factors of clips by hand: at the bound, under it, over it, with norms that may be too small."""

from __future__ import annotations

import math

import pytest
import torch

from fedsim.clipping import (
    Clip,
    FlatClip,
    NoClip,
    NormalisedClip,
    PerLayerClip,
)

FLAT = FlatClip(l2_clip_norm=2.0)
LAYERS = PerLayerClip(l2_clip_norms={"x": 3.0, "y": 4.0})
NAMES = ["x.weight", "y.weight", "x.bias"]


def factors(clip: Clip, *squares: float, norm_error: float = 0.0) -> list[float]:
    row = torch.tensor([squares], dtype=torch.float64)
    found: list[float] = clip.batch_factors(NAMES, row, norm_error=norm_error)[0].tolist()
    return found


def test_flat_by_hand() -> None:
    assert factors(FLAT, 0.0, 0.0, 0.0) == [1.0, 1.0, 1.0]
    assert factors(FLAT, 1.0, 1.0, 1.0) == [1.0, 1.0, 1.0]
    assert factors(FLAT, 16.0, 0.0, 0.0) == pytest.approx([0.5] * 3, rel=1e-8)
    assert all(4.0 * factor <= 2.0 for factor in factors(FLAT, 16.0, 0.0, 0.0))
    # At the bound it is scaled by the margin that pays for the rounding of norms.
    assert 1.0 - 2e-9 < factors(FLAT, 4.0, 0.0, 0.0)[0] < 1.0


def test_per_layer_by_hand() -> None:
    assert factors(LAYERS, 9.0, 9.0, 27.0) == pytest.approx([0.5, 1.0, 0.5], rel=1e-8)
    assert factors(LAYERS, 1.0, 64.0, 1.0) == pytest.approx([1.0, 0.5, 1.0], rel=1e-8)
    assert LAYERS.bound == LAYERS.norm == 5.0


def test_normalised_by_hand() -> None:
    for clip in (FLAT, LAYERS):
        normalised = NormalisedClip(clip=clip)
        expected = [factor / clip.bound for factor in factors(clip, 100.0, 9.0, 7.0)]
        assert factors(normalised, 100.0, 9.0, 7.0) == expected
        assert normalised.unclipped_factor == 1.0 / clip.bound
        assert (normalised.bound, normalised.norm, clip.unclipped_factor) == (1.0, clip.norm, 1.0)


@pytest.mark.parametrize("clip", [FLAT, LAYERS], ids=["flat", "per-layer"])
def test_a_norm_that_may_be_too_small_is_paid_for(clip: FlatClip | PerLayerClip) -> None:
    """The true norm is up to 1/(1 - error) of the given one."""
    error, squares = 0.01, (400.0, 400.0, 0.0)
    for one in (clip, NormalisedClip(clip=clip)):
        applied = factors(one, *squares, norm_error=error)
        true = math.hypot(*(math.sqrt(s) / (1.0 - error) * f for s, f in zip(squares, applied)))  # noqa: B905
        assert 0.97 * one.bound < true <= one.bound
    assert factors(FLAT, 3.9204, 0.0, 0.0, norm_error=error)[0] < 1.0  # 1.98, which may be 2
    assert factors(FLAT, 3.9, 0.0, 0.0, norm_error=error)[0] == 1.0


def test_no_clip_is_ones_and_infinity() -> None:
    assert factors(NoClip(), 1e300, 0.0, 1.0) == [1.0, 1.0, 1.0]
    assert NoClip().bound == NoClip().norm == math.inf

"""Every clip keeps its bound. A new clip is a new row of CLIPS."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsim.clipping import Clip, FlatClip, NormalisedClip, PerLayerClip
from fedsim.tensors import l2_norm

LAYERS = ("a", "b")
CLIPS: dict[str, Clip] = {
    "flat": FlatClip(l2_clip_norm=0.7),
    "per-layer evenly": PerLayerClip.evenly(0.7, LAYERS),
    "per-layer given": PerLayerClip(l2_clip_norms={"a": 0.1, "b": 2.0}),
    "flat normalised": NormalisedClip(clip=FlatClip(l2_clip_norm=0.7)),
    "per-layer normalised": NormalisedClip(clip=PerLayerClip.evenly(0.7, LAYERS)),
}
ENTRIES = st.floats(-(2.0**100), 2.0**100, width=32)


def make_update(values: list[float]) -> dict[str, torch.Tensor]:
    """Three tensors in two layers from six numbers."""
    wide = torch.tensor(values, dtype=torch.float32)
    return {"a.weight": wide[:2].reshape(2, 1), "a.bias": wide[2:3], "b.weight": wide[3:]}


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
class TestEveryClip:
    @given(values=st.lists(ENTRIES, min_size=6, max_size=6))
    def test_never_exceeds_its_bound(self, clip: Clip, values: list[float]) -> None:
        assert l2_norm(clip(make_update(values))) <= clip.bound

    def test_attains_its_bound(self, clip: Clip) -> None:
        assert l2_norm(clip(make_update([1e20] * 6))) >= 0.999999 * clip.bound

    def test_leaves_zero_alone(self, clip: Clip) -> None:
        assert l2_norm(clip(make_update([0.0] * 6))) == 0.0

    def test_keeps_the_direction(self, clip: Clip) -> None:
        update = make_update([3.0, -4.0, 2.0, 12.0, 0.5, -1.0])
        for name, value in clip(update).items():
            ratio = value / update[name]
            assert float(ratio.min()) > 0.0
            assert float(ratio.max()) == pytest.approx(float(ratio.min()))

    def test_does_not_write_into_its_argument(self, clip: Clip) -> None:
        update = make_update([5.0] * 6)
        clip(update)
        assert all(bool((value == 5.0).all()) for value in update.values())

    def test_survives_denormals_and_huge_values(self, clip: Clip) -> None:
        for size in (1e-45, 1e-38, 3e38):
            assert l2_norm(clip(make_update([size] * 6))) <= clip.bound

    def test_round_trips_as_json(self, clip: Clip) -> None:
        assert type(clip).model_validate_json(clip.model_dump_json()) == clip


def test_flat_leaves_a_short_update_unchanged() -> None:
    update = make_update([0.1, 0.1, 0.0, 0.0, 0.2, 0.0])
    clipped = FlatClip(l2_clip_norm=0.7)(update)
    assert all(torch.equal(clipped[name], update[name].double()) for name in update)


def test_a_layer_without_a_bound_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no bound for the layers \['b'\]"):
        PerLayerClip(l2_clip_norms={"a": 1.0})(make_update([1.0] * 6))


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, math.inf])
def test_a_bound_must_be_positive_and_finite(norm: float) -> None:
    with pytest.raises(ValueError, match="l2_clip_norm"):
        FlatClip(l2_clip_norm=norm)

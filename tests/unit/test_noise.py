"""Noise: added in place, bits of the layout alone, one tensor drawn at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fedsim.noise import add_gaussian_
from fedsim.seeding import stream

SHAPES = {"b": (3, 4), "a": (5,), "c": ()}


def estimate() -> dict[str, torch.Tensor]:
    return {
        name: torch.arange(1.0, 1.0 + max(1, int(np.prod(shape))), dtype=torch.float64).view(shape)
        for name, shape in SHAPES.items()
    }


def test_bits_are_the_streams_in_the_order_of_the_names() -> None:
    before, given = estimate(), estimate()
    noised = add_gaussian_(given, 0.37, stream(5, "noise", 2))
    assert noised is given
    assert list(noised) == list(SHAPES)
    drawn = stream(5, "noise", 2).standard_normal(5 + 12 + 1)
    at = 0
    for name in sorted(SHAPES):
        value = before[name]
        part = torch.from_numpy(drawn[at : at + value.numel()] * 0.37).view(value.shape)
        assert torch.equal(noised[name], value + part)
        at += value.numel()


def test_tensors_are_drawn_one_by_one() -> None:
    sizes: list[int] = []

    class Counting:
        def random(self, size: int) -> npt.NDArray[np.float64]:
            raise AssertionError

        def standard_normal(self, size: int) -> npt.NDArray[np.float64]:
            sizes.append(size)
            return np.ones(size)

    add_gaussian_(estimate(), 2.0, Counting())
    assert sizes == [5, 12, 1]


def test_no_noise_draws_nothing() -> None:
    source = stream(0, "noise")
    given = add_gaussian_(estimate(), 0.0, source)
    assert all(torch.equal(value, given[name]) for name, value in estimate().items())
    assert source.standard_normal() == stream(0, "noise").standard_normal()


@pytest.mark.parametrize("stddev", [-1.0, float("nan"), float("inf")])
def test_a_scale_that_is_none_is_refused(stddev: float) -> None:
    given = estimate()
    with pytest.raises(ValueError, match="stddev = "):
        add_gaussian_(given, stddev, stream(0, "noise"))
    assert all(torch.equal(value, given[name]) for name, value in estimate().items())

"""Noise: added in place, bits of the layout alone, one tensor drawn at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fedsim.noise import add_gaussian_, grid_step
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
        step = 2.0**-18  # of 0.37, which is between 2^-2 and 2^-1
        assert torch.equal(noised[name], torch.round((value + part) / step) * step)
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


@pytest.mark.parametrize("stddev", [3e-7, 0.02, 0.25, 1.0, 1.9, 5e4])
def test_a_release_is_on_the_grid_whatever_was_estimated(stddev: float) -> None:
    """Low bits tell of the two that were added; without the grid most sums have some."""
    step = grid_step(stddev)
    assert 2.0**-17 < step / stddev <= 2.0**-16
    for start in (0.0, 1.0 / 3.0, 7e-6 * stddev):
        given = {"w": torch.full((1000,), start, dtype=torch.float64)}
        exact = start + stddev * stream(0, "noise").standard_normal(1000)
        noised = add_gaussian_(given, stddev, stream(0, "noise"))["w"].numpy()
        assert np.array_equal(np.round(noised / step), noised / step)
        assert np.mean(exact / step == np.round(exact / step)) < 0.01
        assert np.abs(noised - exact).max() <= step / 2


@pytest.mark.parametrize("stddev", [-1.0, float("nan"), float("inf"), 1e-300])
def test_a_scale_that_is_none_is_refused(stddev: float) -> None:
    given = estimate()
    with pytest.raises(ValueError, match="stddev = "):
        add_gaussian_(given, stddev, stream(0, "noise"))
    assert all(torch.equal(value, given[name]) for name, value in estimate().items())

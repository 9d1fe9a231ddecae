"""The grid of `fedsim study mechanisms`."""

from __future__ import annotations

import pytest

from fedsim.experiments.studies.choquette_choo_2023.mechanisms import grid


@pytest.mark.parametrize("quick", [True, False])
def test_the_cohort_that_a_line_is_called_after_is_the_one_that_it_draws(quick: bool) -> None:
    drawn = {
        (label, size)
        for cell in grid(quick)
        for label in [dict(cell.settings)["cohort"]]
        if (size := cell.config.strategy.expected_users) is not None
    }
    assert drawn
    for label, size in drawn:
        assert size == pytest.approx(float(label), rel=0.01)

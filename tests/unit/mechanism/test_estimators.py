"""Estimators: what their fields may be, what they say, and sums of every count."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from fedsim.estimators import ClippedDenominator, Estimator, FixedDenominator, WeightedSum

BOTH = (FixedDenominator, ClippedDenominator)
VALUES = {"a": torch.tensor([3.0, -6.0], dtype=torch.float64)}


@pytest.mark.parametrize(
    ("estimator", "sensitivity", "said"),
    [
        (FixedDenominator(1.0, 4.0), 0.5, {"kind": "fixed", "denominator": 4.0}),
        (FixedDenominator(0.25, 0.5), 16.0, {"kind": "fixed", "denominator": 0.125}),
        (ClippedDenominator(1.0, 4.0), 1.0, {"kind": "clipped", "least_denominator": 4.0}),
        (ClippedDenominator(0.25, 8.0), 2.0, {"kind": "clipped", "least_denominator": 2.0}),
    ],
)
def test_sensitivity_and_words_by_hand(
    estimator: Estimator, sensitivity: float, said: dict[str, object]
) -> None:
    assert estimator.sensitivity(2.0) == sensitivity
    assert estimator.describe() == said
    assert estimator.kind == said["kind"]
    assert estimator.sampling_probability in (0.25, 1.0)


def test_estimates_by_hand() -> None:
    for weight, divided_by in ((1.0, 2.0), (3.0, 3.0)):
        total = WeightedSum(VALUES, weight=weight)
        assert FixedDenominator(0.25, 8.0).factor(total) == 0.5
        assert ClippedDenominator(0.25, 8.0).factor(total) == 1.0 / divided_by


def test_every_count_is_added_and_nobody_is_zero() -> None:
    nobody = WeightedSum.zero({"a": torch.zeros(2)})
    counts = [field.name for field in dataclasses.fields(WeightedSum) if field.name != "values"]
    assert all(getattr(nobody, name) == 0 for name in counts)
    assert nobody.values["a"].dtype == torch.float64
    assert nobody.values["a"].tolist() == [0.0, 0.0]
    some = WeightedSum(VALUES, **{name: 2 + 3 * i for i, name in enumerate(counts)})
    added, (absorbed, norms) = some + some, nobody.absorb_([some, some])
    for i, name in enumerate(counts):
        assert getattr(added, name) == getattr(absorbed, name) == 2 * (2 + 3 * i)
    assert added.values["a"].tolist() == absorbed.values["a"].tolist() == [6.0, -12.0]
    assert norms == [math.hypot(3.0, 6.0)] * 2

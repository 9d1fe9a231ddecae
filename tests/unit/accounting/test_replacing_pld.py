"""The distribution of a replaced user against dp_accounting, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

from fedsim.accounting.methods.replacing_pld import inverse_loss, replacing_pld

ROUNDS = [
    (noise, probability)
    for noise in (0.4, 1.0, 7.0)
    for probability in (1e-6, 0.01, 0.5, 0.999, 1.0)
]


@pytest.mark.parametrize("width", [0.3, 1e-3])
@pytest.mark.parametrize(("noise", "probability"), ROUNDS)
def test_it_is_dp_accountings(noise: float, probability: float, width: float) -> None:
    expected = privacy_loss_distribution.from_gaussian_mechanism(
        noise,
        sampling_prob=probability,
        value_discretization_interval=width,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    )
    found = replacing_pld(noise, probability, width)
    assert found._symmetric
    ours, theirs = found._pmf_remove, expected._pmf_remove
    assert type(ours) is type(theirs)
    assert vars(ours).keys() == vars(theirs).keys()
    for name, value in vars(theirs).items():
        np.testing.assert_array_equal(vars(ours)[name], value, err_msg=name)


@pytest.mark.parametrize(("noise", "probability"), ROUNDS)
def test_losses_are_inverted_at_their_ends_and_where_nothing_is_lost(
    noise: float, probability: float
) -> None:
    losses = np.array([-900.0, -3.0, -1e-9, 0.0, 1e-9, 3.0, 900.0])
    pair = GaussianPrivacyLoss(
        noise, sampling_prob=probability, adjacency_type=AdjacencyType.REPLACE
    )
    expected = [pair.inverse_privacy_loss(loss) for loss in losses.tolist()]
    assert inverse_loss(noise, probability, losses).tolist() == expected

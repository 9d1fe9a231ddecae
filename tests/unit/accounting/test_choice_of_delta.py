"""The choice of δ: as a power of the number of users, and at its edges."""

from __future__ import annotations

import pytest

from fedsim.accounting.choice_of_delta import delta_sentence
from fedsim.errors import ConfigError


def test_the_sentence_names_n_its_origin_and_the_power() -> None:
    public = delta_sentence(10**-6.6, 10**6, public=True)
    assert public.startswith("δ = 2.51e-07 is n^-1.1 for n = 1,000,000 users, a number declared")
    assert "private" not in public
    assert "Warning" not in public
    counted = delta_sentence(1e-4, 898, public=False)
    assert "for n = 898 users, counted in the private data" in counted
    assert "Warning" not in counted


@pytest.mark.parametrize(("delta", "warns"), [(1e-3, True), (2e-3, True), (0.99e-3, False)])
def test_a_delta_of_one_over_n_or_more_is_warned_of(delta: float, warns: bool) -> None:
    assert ("Warning: δ is not below 1/n = 0.001" in delta_sentence(delta, 1000, True)) == warns


def test_one_user_has_no_power() -> None:
    with pytest.raises(ConfigError, match="num_users = 1"):
        delta_sentence(1e-5, 1, True)

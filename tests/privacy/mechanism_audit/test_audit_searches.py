"""A search audited whole: the claim holds, and the price of the winner's run alone does not."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.accounting.search import Search
from tests.privacy.mechanism_audit.bounds import Scores
from tests.privacy.mechanism_audit.searches import searched_scores
from tests.privacy.planted_bugs.searches import paid_for, winner_alone


@pytest.mark.parametrize("seed", range(2))
def test_the_price_of_the_whole_search_holds_and_that_of_the_winner_alone_is_refuted(
    seed: int,
) -> None:
    assert paid_for(seed, 20_000).holds
    assert not winner_alone(seed, 20_000).holds


def test_a_replica_shows_the_trial_with_the_best_score() -> None:
    """With little noise on the scores: the largest ratio of as many trials as were drawn."""
    search, made = Search(3.0, 1, 1e-6), []

    def trial(number: int) -> tuple[Scores, Scores]:
        drawn = np.random.default_rng(number).normal(size=(2, 500))
        made.append(drawn)
        return drawn[0], drawn[1]

    shown = np.concatenate(searched_scores(search, trial, 500, seed=1))
    ratios = np.stack([each.ravel() for each in made])
    best_of = np.maximum.accumulate(ratios, axis=0)
    numbers = np.argmax(np.isclose(best_of, shown), axis=0) + 1
    assert np.isclose(best_of, shown).any(axis=0).all()
    assert 1.0 < numbers.mean() <= 3.2

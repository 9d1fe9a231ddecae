"""What samplers say of themselves: their kind, the words of a report, whether it is a promise."""

from __future__ import annotations

import pytest

from fedsim.noise.matrix import banded_matrix
from fedsim.sampling import (
    BalancedSampling,
    CyclicSampling,
    FixedSizeSampling,
    PoissonSampling,
    Sampling,
    ShuffledSampling,
    TruncatedPoissonSampling,
)

SAID: dict[str, tuple[Sampling, bool, str]] = {
    "poisson": (PoissonSampling(0.25), True, "Poisson sampling of users"),
    "truncated-poisson": (
        TruncatedPoissonSampling(0.25, 6, 20),
        True,
        "Poisson sampling of users, truncated at 6 a round",
    ),
    "fixed-size": (
        FixedSizeSampling(5, 20),
        True,
        "fixed-size sampling of 5 users without replacement",
    ),
    "shuffled": (
        ShuffledSampling(5, 20),
        False,
        "shuffled passes over users (accounted as Poisson sampling)",
    ),
    "balanced": (
        BalancedSampling(8, 2),
        True,
        "balanced sampling of users once in each of 2 passes of 4 rounds",
    ),
    "cyclic, priced without its coins": (
        CyclicSampling(8, 2, 0.5, 1.0),
        True,
        "cyclic Poisson sampling of users, one group of 2 in turn (accounted as whole groups)",
    ),
    "cyclic": (
        CyclicSampling(8, 2, 0.5),
        True,
        "cyclic Poisson sampling of users, one group of 2 in turn",
    ),
}


@pytest.mark.parametrize("kind", SAID)
def test_kind_words_and_whether_it_is_a_guarantee(kind: str) -> None:
    law, guaranteed, words = SAID[kind]
    assert law.kind == kind.partition(",")[0]
    assert (law.guaranteed, law.in_words("users")) == (guaranteed, words)
    assert law.probability == 0.25
    if law.kind != "cyclic":
        assert law.chance_in_words("users") == " with probability 0.25"


def test_a_cyclic_coin_is_that_of_a_turn() -> None:
    law = CyclicSampling(15, 5, 0.5)
    said = ", each user with probability 0.5 in its turns (3 at most),"
    assert (law.probability, law.chance_in_words("users")) == (0.1, said)
    whole = CyclicSampling(5, 5, 1.0).chance_in_words("examples")
    assert whole == ", each example with probability 1 in its turn (1 at most),"


def test_fresh_noise_is_told_from_priced_noise() -> None:
    matrix = banded_matrix(64, 4)
    assert matrix.amplification > 1.1
    said = matrix.in_words("user", 4)
    assert f"priced one; each round draws {matrix.amplification:.4g} times that noise." in said


def test_one_pass_and_passes_of_one_round_in_words() -> None:
    assert BalancedSampling(9, 1).in_words("users") == "balanced sampling of users once in 9 rounds"
    uneven = BalancedSampling(8, 3).in_words("users")
    assert uneven == "balanced sampling of users once in each of 3 passes of 2 or 3 rounds"
    every = BalancedSampling(3, 3).in_words("users")
    assert every == "balanced sampling of users once in each of 3 passes of 1 round"

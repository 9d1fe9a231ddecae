"""ε is never said alone, and never rounded down."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from fedsim.accounting.events import RoundCost
from fedsim.accounting.rounding import text_up
from fedsim.accounting.statement import PrivacyTerms, finite_or_none, mechanism_text
from fedsim.sampling import BalancedSampling, CyclicSampling, PoissonSampling

TERMS: dict[str, Any] = {
    "unit": "user",
    "relation": "add-or-remove-one user",
    "epsilon": 7.99912,
    "delta": 1e-5,
    "noise_multiplier": 2.193,
    "sampling_probability": 0.05,
    "sampler": "Poisson sampling of examples",
    "rounds": 60,
    "units_per_user": 8,
    "accountant": "mixture",
}


def test_the_sentence_says_all_of_it() -> None:
    sentence = PrivacyTerms(**TERMS).sentence()
    for part in (
        "ε = 8,",  # 7.99912 rounded up at four digits
        "δ = 1e-05",
        "user",
        "add-or-remove-one user",
        "Poisson sampling of examples (at most 8 a user)",
        "60 rounds",
        "0.05",
        "2.193",
        "mixture accountant",
    ):
        assert part in sentence


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1e-3, 6, "0.001"),
        (1e-4, 6, "0.0001"),
        (0.1 + 0.2, 6, "0.3"),
        (2.1 + 0.2, 6, "2.3"),
        (2.3454, 4, "2.346"),
        (12342.0, 4, "12350"),
        (12346.0, 4, "12350"),
        (1.0000004e-5, 6, "1.00001e-05"),
        (0.0002338124, 6, "0.000233813"),
        (math.inf, 4, "inf"),
    ],
)
def test_numbers_are_as_they_are_or_larger(value: float, digits: int, text: str) -> None:
    assert text_up(value, digits) == text


@pytest.mark.parametrize("change", [{"epsilon": math.inf}, {"delta": None}])
def test_no_promise_says_so(change: dict[str, Any]) -> None:
    sentence = PrivacyTerms(**{**TERMS, **change}).sentence()
    assert sentence.startswith("No privacy guarantee")
    assert "ε =" not in sentence


def test_a_seeded_run_promises_nothing() -> None:
    terms = PrivacyTerms(**TERMS, noise="seeded")
    assert terms.sentence().startswith(
        "Simulated: with secret randomness this mechanism gives every user (ε = 8, δ = 1e-05)"
    )
    assert terms.sentence().endswith("so it protects nobody.")
    assert terms.caption().startswith("simulated: δ = ")
    assert PrivacyTerms(**TERMS, noise="secure").sentence().startswith("Every user has (ε = 8,")


def test_runs_with_one_price_are_counted() -> None:
    """Rounds of two runs are not one run of twice as many; the coin is that of a turn."""
    balanced = RoundCost(BalancedSampling(12, 3), 1.0)
    terms: dict[str, Any] = {"delta": 1e-5, "epsilon": 1.0}
    twice = PrivacyTerms.of(balanced, "users", rounds=24, **terms).sentence()
    assert "24 rounds (2 runs of 12) of balanced sampling of users once in each of 3" in twice
    assert " runs of " not in PrivacyTerms.of(balanced, "users", rounds=12, **terms).sentence()
    cyclic = RoundCost(CyclicSampling(15, 5, 0.5), 1.0)
    once = PrivacyTerms.of(cyclic, "users", rounds=15, **terms).sentence()
    chance = "each user with probability 0.5 in its turns (3 at most), and noise multiplier 1,"
    assert f"of cyclic Poisson sampling of users, one group of 5 in turn, {chance}" in once
    poisson = RoundCost(PoissonSampling(0.5), 2.0)
    assert PrivacyTerms.of(poisson, "users", rounds=24, **terms).runs == ""
    assert mechanism_text(cyclic, "units", 30).startswith("rounds (2 runs of 15) of cyclic")


def test_json_gets_no_infinity() -> None:
    assert json.dumps([finite_or_none(math.inf), finite_or_none(2.5)], allow_nan=False) == (
        "[null, 2.5]"
    )

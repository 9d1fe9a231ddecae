"""`fedsim.report.wording`: numbers that cannot flatter, sentences that cannot leave terms out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.report.wording import (
    bytes_text,
    decimal_text,
    delta_text,
    duration_text,
    epsilon_text,
    guarantee_text,
    promised_text,
    rounds_text,
    settings_text,
    terms_text,
)
from tests.unit.report.report_samples import non_private, privacy


@pytest.mark.parametrize(
    ("epsilon", "text"),
    [
        (7.991, "8.00"),
        (8.0, "8.00"),
        (8.0 + 1e-12, "8.00"),
        (8.0001, "8.01"),
        (0.1, "0.10"),
        (0.0121, "0.013"),
        (0.0000121, "1.3e-5"),
        (0.0, "0"),
        (1.0001e27, "1.01e+27"),
        (float("inf"), "∞"),
        (None, "–"),
    ],
)
def test_epsilon_is_rounded_up(epsilon: float | None, text: str) -> None:
    assert epsilon_text(epsilon) == text


@given(st.floats(min_value=1e-300, max_value=1e12))
def test_a_displayed_epsilon_is_never_below_the_true_one(epsilon: float) -> None:
    shown = float(epsilon_text(epsilon))
    assert epsilon * (1 - 2e-9) <= shown <= epsilon * 1.12 + 1e-300


@given(st.floats(min_value=1e-300, max_value=0.999))
def test_a_displayed_delta_is_exact(delta: float) -> None:
    assert float(delta_text(delta)) == delta


def test_numbers_read_well() -> None:
    assert delta_text(1e-5) == "1e-5"
    assert decimal_text(1234.5678, 2) == "1,234.57"
    assert decimal_text(float("inf")) == "∞"
    assert decimal_text(float("nan")) == "not a number"
    assert decimal_text(3.2e12) == "3.2e+12"
    assert [duration_text(s) for s in (4.24, 59.99, 200, 7500)] == [
        "4.2 s",
        "60.0 s",
        "3 min 20 s",
        "2 h 05 min",
    ]
    assert bytes_text(3 * 2**20) == "3 MiB"
    assert bytes_text(3 * 2**29) == "1.50 GiB"
    assert settings_text({"kind": "flat", "l2_clip_norm": 0.5, "l2_clip_norms": None}) == (
        "flat, l2_clip_norm = 0.5"
    )


def test_the_terms_of_an_epsilon_are_complete() -> None:
    promise = privacy()
    for part in ("δ = 1e-5", promise.unit, promise.relation, promise.sampler, "pld"):
        assert part in terms_text(promise)
    assert guarantee_text(promise) == "Simulated (ε = 8.00, δ = 1e-5) for each user"
    secure = promise.model_copy(update={"noise": "secure"})
    assert guarantee_text(secure) == "(ε = 8.00, δ = 1e-5) for each user"
    assert "not counted" not in terms_text(promise)
    further = promise.model_copy(update={"earlier_training": ("'start' has a promise of its own",)})
    assert terms_text(further).endswith("; not counted: earlier training of the starting model")
    assert further.promise == f"{promise.statement} 'start' has a promise of its own"
    terms = terms_text(promise).removeprefix("simulated ε ")
    assert promised_text(promise) == f"simulated ε = 8.00 {terms}"
    supposed = promised_text(promise.model_copy(update={"hypothetical": True}))
    assert supposed.startswith("no guarantee: hypothetical ε = 8.00 at δ = 1e-5; unit: user; ")
    scored = promise.model_copy(update={"scores": 1})
    assert rounds_text(scored) == "100, and 1 private score"


def test_no_guarantee_is_said_in_words() -> None:
    assert guarantee_text(non_private()) == "No privacy guarantee"
    assert "no privacy guarantee" in terms_text(non_private())
    assert promised_text(non_private()) == terms_text(non_private())

"""ε is never said alone, and never rounded down."""

from __future__ import annotations

import dataclasses
import json
import math

from fedsim.accounting.statement import PrivacyStatement

STATEMENT = PrivacyStatement(
    unit="user",
    relation="add-or-remove-one user",
    epsilon=7.99912,
    delta=1e-5,
    noise_multiplier=2.193,
    sampling_probability=0.05,
    sampler="Poisson sampling of examples",
    rounds=60,
    units_per_user=8,
    clip={"kind": "flat", "l2_clip_norm": 1.0},
    estimator={"kind": "fixed"},
    noise_stddev=0.034,
    accountant="mixture",
    discretisation=1e-3,
    noise="seeded",
    assumptions=("The number of users is public.",),
)


def test_the_sentence_says_all_of_it() -> None:
    sentence = STATEMENT.sentence()
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


def test_one_unit_a_user_needs_no_cap() -> None:
    assert "at most" not in dataclasses.replace(STATEMENT, units_per_user=1).sentence()


def test_no_promise_says_so() -> None:
    for change in ({"epsilon": math.inf}, {"delta": None}):
        sentence = dataclasses.replace(STATEMENT, **change).sentence()
        assert sentence.startswith("No privacy guarantee")
        assert "ε =" not in sentence


def test_json_holds_every_field_and_nothing_json_cannot_write() -> None:
    silent = dataclasses.replace(STATEMENT, epsilon=math.inf)
    data = json.loads(json.dumps(silent.to_json(), allow_nan=False))
    assert set(data) == {field.name for field in dataclasses.fields(PrivacyStatement)}
    assert data["epsilon"] is None
    assert STATEMENT.to_json()["epsilon"] == 7.99912
    assert data["clip"] == {"kind": "flat", "l2_clip_norm": 1.0}
    assert data["assumptions"] == ["The number of users is public."]

"""A resolved config, written as TOML, reads back as itself."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fedsim.config import parse_config

POSITIVE = st.floats(min_value=0.0, exclude_min=True, allow_infinity=False)
RATE = st.floats(min_value=0.0, max_value=1e38, exclude_min=True)
NORM = st.floats(min_value=1e-300, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
LOCAL = st.one_of(
    st.just({"task": "fedsgd"}),
    st.fixed_dictionaries(
        {"task": st.just("fedavg"), "learning_rate": RATE}, optional={"epochs": st.just(3)}
    ),
)
CLIP = st.one_of(
    st.fixed_dictionaries({"l2_clip_norm": NORM, "normalise": st.booleans()}),
    st.fixed_dictionaries(
        {
            "kind": st.just("per-layer"),
            "l2_clip_norms": st.dictionaries(TEXT, NORM, min_size=1, max_size=3),
        }
    ),
)
RAW = st.fixed_dictionaries(
    {
        "seed": st.integers(-(2**63), 2**63 - 1),
        "data": st.fixed_dictionaries({"source": NAME, "user_column": TEXT}),
        "strategy": st.fixed_dictionaries(
            {"local": LOCAL, "clip": CLIP}, optional={"cohort_size": POSITIVE}
        ),
        "privacy": st.fixed_dictionaries(
            {},
            optional={
                "epsilon": POSITIVE,
                "accountant": st.sampled_from(["pld", "rdp"]),
                "delta": st.just(1e-300),
            },
        ),
    }
)


@given(raw=RAW)
def test_toml_there_and_back(raw: dict[str, Any]) -> None:
    config = parse_config(raw)
    assert parse_config(tomllib.loads(config.to_toml())) == config

"""The configs and texts of the study of user inference."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedsim.experiments.studies.kandpal_2023 import user_inference_runs as runs


@pytest.fixture
def few_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configs that count users are made without reading the plays."""
    monkeypatch.setattr(runs, "_user_sizes", lambda _: np.array([40, 200, 90]))
    speeches = [("play/ann", f"{i} " * 40) for i in (1, 1, 2, 3, 4, 5, 6, 7)]
    speeches += [("play/ann", "short"), ("play/bob", "0 " * 40)]
    monkeypatch.setattr(runs, "private_speeches", lambda: iter(speeches))


@pytest.mark.usefixtures("few_users")
def test_runs_differ_in_their_mitigation_and_in_nothing_else(tmp_path: Path) -> None:
    cases = list(runs.cases(runs.FULL, tmp_path))
    plain = cases[0].config
    assert len({case.name for case in cases}) == len(cases)
    for case in cases[1:]:
        assert case.config.model == plain.model
        assert case.config.seed == plain.seed
        if case.kind not in ("repetition", "canaries", "protected canaries"):
            assert case.config.data == plain.data
    limited = next(case.config.strategy for case in cases if case.kind == "limit")
    # as many passes over fewer examples: the rate stays
    pool = sum(min(size, limited.group_size) for size in (40, 200, 90))
    assert plain.strategy.expected_examples is not None
    assert limited.expected_examples == pytest.approx(plain.strategy.expected_examples * pool / 330)


@pytest.mark.usefixtures("few_users")
def test_speakers_with_enough_speeches_have_so_many_and_some_twice(tmp_path: Path) -> None:
    found = []
    for repeated in (False, True):
        path = runs.write_texts(tmp_path / "texts.jsonl", 6, None, repeated=repeated)
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert {row["speaker"] for row in rows} == {"play/ann"}
        assert all(row["text"].startswith("Ann. ") for row in rows)
        found.append([row["text"][5] for row in rows])
    assert found == [list("123456"), list("12334566")]

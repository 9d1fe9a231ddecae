"""Scoring many examples says how far it is."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.evaluation import scoring
from fedsim.materials import Materials


def test_it_says_how_far_it_is(
    materials: Materials, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a store of millions of examples it takes an hour, which looked as if it hung."""
    monkeypatch.setattr("fedsim.utils.terminal._QUIET", 0.0)
    monkeypatch.setattr(scoring, "_MOST_EXAMPLES", 3)
    examples = np.arange(10)
    tokens = int(materials.store.lengths(examples).sum())
    with caplog.at_level("INFO", "fedsim"):
        scoring.score_examples(
            materials.model, materials.model.initial_parameters(), materials.store, examples
        )
    lines = [record.getMessage() for record in caplog.records if "scoring" in record.getMessage()]
    assert len(lines) == 4
    title = "scoring (not protected by the privacy guarantee)"
    assert lines[-1] == f"{title}: 100 % of {tokens:,} tokens of 10 texts"
    assert 0 < int(lines[0].split(": ")[1].split(" %")[0]) < 100

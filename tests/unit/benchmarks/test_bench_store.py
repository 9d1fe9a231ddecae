"""The benchmark of the token store: its sample is what it claims to be, and every step runs."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from fedsim.experiments.benchmarks.store import bench_store as benchmark
from fedsim.experiments.benchmarks.store import sample


def test_the_full_sample_is_as_large_as_it_says() -> None:
    sizes = sample.user_sizes()
    assert len(sizes) == 342_477
    assert sizes.sum() >= 20_000_000
    assert sizes.min() >= 1
    assert sizes.max() > 30_000
    assert np.median(sizes) < sizes.mean() / 2  # a long tail


def test_texts_are_the_ids_that_encode_gives() -> None:
    sizes = sample.user_sizes(50, 2_000)
    records = list(sample.texts(sizes))
    users, counts = np.unique([user for user, _ in records], return_counts=True)
    assert len(users) == 50
    assert sorted(counts) == sorted(sizes)
    assert [user for user, _ in islice(records, 20)] != sorted(user for user, _ in records)[:20]
    for ids, (_, text) in zip(sample.encode([text for _, text in records]), records, strict=True):
        assert 10 <= len(ids) <= sample.SEQUENCE_LENGTH
        assert ids.tolist() == [ord(character) for character in text]
        assert ids.max() < sample.VOCABULARY_SIZE


def test_every_step_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path))
    monkeypatch.setattr(benchmark, "_REPETITIONS", 3)
    monkeypatch.setattr(benchmark, "_OPENINGS", 1)
    rows = benchmark.run(users=300, examples=6_000)
    assert [row["case"] for row in rows] == ["build", "open", "verify", "cohort", "cohort"]
    assert all(row["seconds"] is not None and row["seconds"] > 0 for row in rows)
    built = rows[0]["details"]
    assert built["users"] == 300
    assert built["examples"] >= 6_000
    assert built["largest_user"] == 1_500
    assert 0 < rows[1]["details"]["anonymous_bytes"] < 50 << 20
    assert rows[3]["details"]["rows_in_the_mean"] > 150 * 5
    assert list(tmp_path.glob("bench-store-*")) == []

"""The study of user inference: its configs hold together, and its sentences follow the numbers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from experiments.studies.kandpal_2023 import user_inference_runs as runs
from experiments.studies.kandpal_2023.user_inference_findings import findings


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
    assert plain.strategy.batch_size is not None
    assert limited.batch_size == pytest.approx(plain.strategy.batch_size * pool / 330)


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


def row(kind: str, mean: float, name: str = "", *, other: float = 0.4) -> Any:  # noqa: ANN401
    areas = {"mean": mean, "max": other, "min": other}
    state = SimpleNamespace(loss_in=4.0, auroc=mean, round=3, gap=0.1)
    measured = [SimpleNamespace(samples=m) for m in (1, 8)]
    return SimpleNamespace(
        case=SimpleNamespace(kind=kind, name=name or f"{kind}, x"),
        initial_loss=5.0,
        report=SimpleNamespace(
            checkpoints=[state],
            final=state,
            rank_correlation=None,
            privacy=SimpleNamespace(epsilon=8.0 if kind == "user-level" else None),
            bound=SimpleNamespace(auroc=0.6 if kind == "user-level" else None),
        ),
        group=SimpleNamespace(measured=measured, users_in=5, users_out=6),
        measured=lambda statistic="mean", samples=8: SimpleNamespace(
            auroc=areas[statistic], auroc_interval=(mean - 0.1, mean + 0.1)
        ),
    )


def test_the_sentences_follow_the_numbers() -> None:
    rows = [
        row("none", 0.7),
        row("repetition", 0.8),
        row("limit", 0.75),
        row("limit", 0.55),
        row("user-level", 0.65),
        row("canaries", 0.6, "canaries, l = 1"),
        row("canaries", 0.9, "canaries, l = 4"),
    ]
    text = "\n".join(findings(rows))
    assert "0.700 (0.600 to 0.800), above guessing" in text
    assert "best of the three statistics in 7 of 7 runs" in text
    assert "Data limits per user: the AUROC is lower in 1 of 2 runs" in text
    assert "Removing the repetitions within users lowers the AUROC: 0.800 with" in text
    assert "above it: user-level" in text
    assert "from 5.000, the runs with noise reach: user-level, x: 100%" in text
    assert "l = 1: 0.600; l = 4: 0.900, on real users 0.700; it rises with l" in text


def test_what_does_not_hold_is_said_not_to() -> None:
    rows = [
        row("none", 0.55, other=0.9),
        row("repetition", 0.5),
        row("user-level", 0.5),
        row("canaries", 0.6, "canaries, l = 1"),
        row("canaries", 0.5, "canaries, l = 4"),
    ]
    text = "\n".join(findings(rows))
    assert "not told from guessing" in text
    assert "in 4 of 5 runs" in text
    assert "does not lower the AUROC" in text
    assert "below it in every run" in text
    assert "it does not rise steadily with l" in text

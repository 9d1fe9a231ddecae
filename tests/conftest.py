"""What tests share: a cache of their own, a small text of several users, a config on it."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from fedsim.config import Config, parse_config
from fedsim.materials import Materials, load_materials
from fedsim.utils.machine import collect_garbage_rarely

# Until the first test, as a command does: half a million objects are made that stay.
_AS_OFTEN_AS_PYTHON_DOES = gc.get_threshold()
collect_garbage_rarely()

# How long an example takes says what else the machine does.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Short names, so that a test and what it asks for stand in one line.
Patch = pytest.MonkeyPatch
Log = pytest.LogCaptureFixture
Capture = pytest.CaptureFixture[str]

DEVICE = os.environ.get("FEDSIM_TEST_DEVICE", "cpu")
"""Where the tests compute that `fedsim.experiments.benchmarks.gpu` runs on a GPU."""

WORDS = ["the", "king", "shall", "ride", "to", "war", "with", "all", "my", "lord", "come", "again"]


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep stores and models of the tests away from the user's cache, and threads few.

    Garbage is collected as often as by default, also after a command in this process: what Ray
    leaves open is warned of in the test that left it. What was made before is no garbage.
    """
    torch.set_num_threads(1)
    gc.freeze()
    gc.set_threshold(*_AS_OFTEN_AS_PYTHON_DOES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "set_threshold", lambda *_: None)
        patch.setenv("FEDSIM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def speeches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A JSONL of 24 users with 1 to 9 texts of 1 to 30 words each."""
    return write_speeches(tmp_path_factory.mktemp("texts") / "speeches.jsonl", 7)


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    """Write a JSONL, and return where."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_speeches(path: Path, seed: int) -> Path:
    """Write such texts, and return where."""
    rng = np.random.default_rng(seed)
    rows = [
        {"author": f"user-{user}", "body": " ".join(rng.choice(WORDS, rng.integers(1, 31)))}
        for user in range(24)
        for _ in range(rng.integers(1, 10))
    ]
    return write_rows(path, rows)


ANSWERS: dict[str, Any] = {"text_column": None, "messages_column": "messages"}
"""Keys of [data] that read `answers`."""


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A JSONL of 24 users with 1 to 6 conversations of one or two questions and answers."""
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    rng = np.random.default_rng(8)
    rows = [
        {
            "author": f"user-{user}",
            "messages": [
                {"role": role, "content": " ".join(rng.choice(WORDS, rng.integers(1, 8)))}
                for _ in range(rng.integers(1, 3))
                for role in ("user", "assistant")
            ],
        }
        for user in range(24)
        for _ in range(rng.integers(1, 7))
    ]
    return write_rows(path, rows)


def small_config(source: Path, **sections: dict[str, Any]) -> Config:
    """Return a config of a few quick rounds on `source`; sections are laid over it key by key."""
    raw: dict[str, Any] = {
        "data": {
            "source": str(source),
            "user_column": "author",
            "text_column": "body",
            "sequence_length": 24,
        },
        "model": {"pretraining_steps": 0, "trainable": r"ln_"},
        "strategy": {
            "rounds": 4,
            "cohort_size": 6,
            "group_size": 3,
            "clip": {"kind": "flat", "l2_clip_norm": 0.5},
        },
        "privacy": {"noise_multiplier": 1.0, "delta": 1e-3, "noise": "seeded"},
        "training": {"evaluate_every": 2, "checkpoint_every": 2},
    }
    for name, section in sections.items():
        merged = {**raw.get(name, {}), **section}
        raw[name] = {key: value for key, value in merged.items() if value is not None}
    return parse_config(raw)


@pytest.fixture(scope="session")
def materials(speeches: Path) -> Materials:
    """Model, store and split of the small config."""
    config = small_config(speeches)
    return load_materials(config.seed, config.data, config.model, "cpu")

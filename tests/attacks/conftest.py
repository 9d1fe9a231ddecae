"""One finished run that is attacked: forty users who write differently, half of them trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedsim.config import Config
from fedsim.runner.launch import run
from tests.conftest import WORDS, small_config, write_rows

CANARIES = {"num_users": 20, "num_examples": 8, "shared_tokens": 6}


def attacked_config(source: Path, **sections: dict[str, object]) -> Config:
    """Return the config of the run that is attacked; sections are laid over it."""
    data: dict[str, object] = {
        "held_out_users": 0.5,
        "held_out_examples": 0.4,
        "canaries": CANARIES,
        "sequence_length": 16,
    }
    config = small_config(
        source,
        data={**data, **sections.get("data", {})},
        model={"trainable": "wte"},
        strategy={
            "name": "non-private",
            "batch_size": 60,
            "cohort_size": None,
            "rounds": 6,
            **sections.get("strategy", {}),
        },
        server={"learning_rate": 0.02},
        training={"evaluate_every": 6, "checkpoint_every": 2, "keep_checkpoints": 3},
    )
    return config.model_copy(update={"seed": 3})


@pytest.fixture(scope="session")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A JSONL of 40 users with 6 to 12 texts each, every user with favourite words."""
    path = tmp_path_factory.mktemp("letters") / "letters.jsonl"
    rng = np.random.default_rng(11)
    rows = []
    for user in range(40):
        taste = rng.dirichlet(np.full(len(WORDS), 0.3))
        rows += [
            {"author": f"user-{user}", "body": " ".join(rng.choice(WORDS, 9, p=taste))}
            for _ in range(rng.integers(6, 13))
        ]
    return write_rows(path, rows)


@pytest.fixture(scope="session")
def attacked(letters: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the finished run."""
    return run(attacked_config(letters), tmp_path_factory.mktemp("attacked") / "run").path

"""Where a run lives while it is tortured, and what it is asked to do: small, but all of it."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import tomli_w

ROUNDS, CHECKPOINT_EVERY, KEPT = 12, 2, 2

_WORDS = ["the", "king", "shall", "ride", "to", "war", "with", "all", "my", "lord", "come"]


@dataclass(frozen=True)
class Scene:
    """A run and all that it writes.

    Attributes:
        config: of the run.
        run: its folder.
        cache: its `FEDSIM_CACHE`, in which it builds its base model and its store.
    """

    config: Path
    run: Path
    cache: Path

    @property
    def arguments(self) -> list[str]:
        """What the command is given; the same whether the run begins or is taken up."""
        return ["run", str(self.config), "--out", str(self.run), "--resume"]

    @property
    def environment(self) -> dict[str, str]:
        """What the command's environment has on top."""
        return {"FEDSIM_CACHE": str(self.cache), "OMP_NUM_THREADS": "1"}


def write_text(path: Path, seed: int) -> None:
    """Write a JSONL of 24 users with 1 to 9 texts of 1 to 30 words each."""
    rng = random.Random(seed)  # noqa: S311
    rows = [
        {"author": f"user-{user}", "body": " ".join(rng.choices(_WORDS, k=rng.randint(1, 30)))}
        for user in range(24)
        for _ in range(rng.randint(1, 9))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_config(path: Path, text: Path, noise: str) -> None:
    """Write the config of a few quick rounds on the text, with "seeded" or "secure" noise."""
    config = {
        "data": {
            "source": str(text),
            "user_column": "author",
            "text_column": "body",
            "sequence_length": 24,
        },
        "model": {"pretraining_steps": 0, "trainable": "ln_"},
        "strategy": {"rounds": ROUNDS, "cohort_size": 6, "group_size": 3},
        "privacy": {
            "noise_multiplier": 1.0,
            "delta": 1e-3,
            "noise": noise,
            "declared_num_users": 24,
        },
        "training": {
            "evaluate_every": 2,
            "checkpoint_every": CHECKPOINT_EVERY,
            "keep_checkpoints": KEPT,
        },
    }
    path.write_text(tomli_w.dumps(config), encoding="utf-8")


def scene_in(folder: Path, config: Path) -> Scene:
    """Return a scene with an empty cache in a new folder; runs are all called alike."""
    folder.mkdir(parents=True)
    return Scene(config, folder / "run", folder / "cache")

"""Peak memory of a whole run of a real model, with server and worker in one process.

The floor is a plain training step of the same batch (`plain_step.py`). Each is measured in its own
process: `python -m fedsim.experiments.benchmarks.server.run_memory FOLDER {}` runs the model in a
folder, with more config keys as JSON, and prints the bytes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from transformers import PretrainedConfig

import fedsim
from fedsim.experiments.benchmarks.server import plain_step
from fedsim.experiments.benchmarks.server.large_round import save_random
from fedsim.experiments.benchmarks.timing import Row, in_own_process
from fedsim.utils.machine import peak_memory_bytes

_USERS, _GROUP_SIZE, _LENGTH = 8, 2, 64
_WORDS_EACH = 2_500
_ROUNDS = 2  # the first round has no moments
_WORDS = ("the", "king", "shall", "ride", "to", "war", "with", "all", "my", "lords")

_LORA = {"model": {"lora_rank": 8}}
CASES: Mapping[str, Mapping[str, Any]] = {
    "lora": _LORA,
    "lora, checkpointing": {**_LORA, "executor": {"checkpointing": True}},
    "all": {},
}


def run_rows(name: str, config: PretrainedConfig) -> list[Row]:
    """Return the peaks of runs of a model with random weights; `ratio` is to the floor's."""
    with TemporaryDirectory() as folder:
        save_random(config, Path(folder))
        floors = {rank: measured(plain_step.__name__, folder, rank) for rank in (8, 0)}
        rows = [
            _row(f"{name}/{case}: plain step", floors[rank], 1.0)
            for case, rank in (("lora", 8), ("all", 0))
        ]
        for case, settings in CASES.items():
            peak = measured(__name__, folder, json.dumps(settings))
            floor = floors[settings.get("model", {}).get("lora_rank", 0)]
            rows.append(_row(f"{name}/{case}", peak, peak[1] / floor[1]))
    return rows


def measured(module: str, *arguments: object) -> tuple[float, int]:
    """Return seconds and peak bytes of a process."""
    started = time.perf_counter()
    peak = in_own_process(module, *arguments)
    return time.perf_counter() - started, peak


def _row(case: str, of: tuple[float, int], ratio: float) -> Row:
    seconds, peak = of
    details = {
        "peak_bytes": peak,
        "users": _USERS,
        "tokens_per_user": _GROUP_SIZE * _LENGTH,
        "rounds": _ROUNDS,
    }
    return Row(benchmark="memory", case=case, seconds=seconds, ratio=ratio, details=details)


def write_words(path: Path, users: int, words: int) -> Path:
    """Write a text of `words` words for each of `users` users."""
    rng = np.random.default_rng(0)
    lines = (
        json.dumps({"user": f"user-{user}", "text": " ".join(rng.choice(_WORDS, words))})
        for user in range(users)
    )
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def peak_of(folder: str, settings: Mapping[str, Any]) -> int:
    """Return this process's peak over a run: rounds, evaluations, checkpoints, the saved model."""
    with TemporaryDirectory() as out:
        source = write_words(Path(out) / "texts.jsonl", _USERS, _WORDS_EACH)
        data = {"source": str(source), "user_column": "user", "text_column": "text"}
        config = {
            **settings,
            "data": {**data, "sequence_length": _LENGTH},
            "model": {**settings.get("model", {}), "name_or_path": folder},
            "strategy": {"rounds": _ROUNDS, "cohort_size": _USERS, "group_size": _GROUP_SIZE},
            "privacy": {"noise_multiplier": 1.0, "delta": 1e-4, "declared_num_users": _USERS},
            "server": {"learning_rate": 1e-4},
            "training": {"evaluate_every": 1, "checkpoint_every": 1},
        }
        fedsim.run(config, Path(out) / "run")
        return peak_memory_bytes()


if __name__ == "__main__":
    sys.stdout.write(f"{peak_of(sys.argv[1], json.loads(sys.argv[2]))}\n")

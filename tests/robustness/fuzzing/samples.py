"""The valid inputs that hostile ones are made of: texts, a finished run, a token store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsim.config import Config
from fedsim.data.building.build import build_store
from fedsim.runner.launch import run
from tests.conftest import WORDS, small_config, write_rows

RUN, STORE, TEXTS = "run", "store", "texts.jsonl"


def texts(valid: Path) -> Path:
    """Return a JSONL of 12 users with 5 texts each, made if need be."""
    path = valid / TEXTS
    if not path.exists():
        rows = [
            {"author": f"user-{i % 12}", "body": " ".join(WORDS[: 2 + i % 11]), "likes": i}
            for i in range(60)
        ]
        write_rows(path, rows)
    return path


def run_config(valid: Path) -> Config:
    """Return the config of a run of two rounds."""
    return small_config(
        texts(valid),
        data={"sequence_length": 16, "held_out_users": 0.3},
        strategy={"rounds": 2, "cohort_size": 4, "clip": None},
        training={"evaluate_every": 1, "checkpoint_every": 1},
    )


def finished_run(valid: Path) -> None:
    """Train the run, unless it is there."""
    if not (valid / RUN / "report.json").exists():
        run(run_config(valid), valid / RUN, resume=True)


def token_store(valid: Path) -> None:
    """Build a store of bytes as tokens, unless it is there."""
    if not (valid / STORE).exists():
        rows = [json.loads(line) for line in texts(valid).read_text("utf-8").splitlines()]
        build_store(
            [(row["author"], row["body"]) for row in rows],
            encode=encode,
            vocabulary_size=258,
            tokenizer_fingerprint="bytes",
            sequence_length=16,
            cutting="split",
            destination=valid / STORE,
            source="a sample",
            num_workers=0,
        )


def encode(texts: Sequence[str]) -> list[list[int]]:
    """Return UTF-8 bytes between a begin and an end token."""
    return [[256, *text.encode(), 257] for text in texts]


def read_json(path: Path) -> Any:  # noqa: ANN401
    """Return what a file of JSON holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, value: object) -> None:
    """Write JSON, with NaN and lone surrogates where the value has them."""
    path.write_bytes(json.dumps(value).encode("utf-8", errors="surrogatepass"))

"""Hostile caches: numbers, scores, notes and stores that were kept."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import save_file

from fedsim.evaluation.score_cache import ScoreCache
from fedsim.materials import load_materials
from fedsim.utils.cache import remembered
from tests.robustness.fuzzing.mutations import Dice, changed_bytes, pick
from tests.robustness.fuzzing.samples import (
    finished_run,
    run_config,
)
from tests.robustness.fuzzing.target import Target, believe

_KEPT = "kept"
_TRUE = 1.5
_INPUTS = {"q": 0.5, "rounds": 10}


def _cache(place: Path) -> Any:  # noqa: ANN401
    """Return a patch that keeps what is cached in the input's folder."""
    return patch.dict("os.environ", {"FEDSIM_CACHE": str(place / "cache")})


def _only_file(place: Path, pattern: str) -> Path:
    (path,) = place.rglob(pattern)
    return path


def _write_number(valid: Path, place: Path, dice: Dice) -> None:
    with _cache(place):
        remembered("numbers", _INPUTS, lambda: _TRUE, lambda value: value > 0.0)
    path = _only_file(place, "*.json")
    path.write_bytes(pick(dice, [b"[" * 100_000, b'{"value": 1}', b"9" * 5000, b"\xff", b"null"]))


def _read_number(place: Path) -> None:
    with _cache(place):
        value = remembered("numbers", _INPUTS, lambda: _TRUE, lambda value: 0.0 < value < 1e300)
    believe(value == _TRUE, f"the number {value!r}")


def _write_scores(valid: Path, place: Path, dice: Dice) -> None:
    count = int(pick(dice, [0, 1, 5, 5, 5, 1000]))
    kinds = [torch.float64, torch.float64, torch.int64, torch.float32, torch.bool, torch.bfloat16]
    tensors = {
        name: torch.full((count,), float(pick(dice, [0.0, 1.0, -5.0, 1e9]))).to(pick(dice, kinds))
        for name in ("nats", "correct", "tokens", "x")
        if dice.random() < 0.9
    }
    if dice.random() < 0.9:
        passes = torch.tensor(pick(dice, [0, 1, -1, 9, [1, 1], 0.5]))
        tensors["passes"] = passes.to(pick(dice, [*kinds, torch.int64]))
    if tensors and dice.random() < 0.3:
        tensors["nats"] = pick(dice, [torch.zeros(count, 2), torch.tensor(1.0)])
    save_file(tensors, place / _KEPT)
    if dice.random() < 0.4:
        (place / _KEPT).write_bytes(changed_bytes(dice, (place / _KEPT).read_bytes()))


def _read_scores(place: Path) -> None:
    valid = place.parent / "valid"
    config = run_config(valid)
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    cache, examples = ScoreCache(materials.store, place / "scores"), np.arange(5)
    start = materials.model.initial_parameters()
    true = cache.scores(materials.model, start, examples)
    shutil.copy(place / _KEPT, _only_file(place, "*.safetensors"))
    again = cache.scores(materials.model, start, examples)
    believe(again.nats.shape == true.nats.shape, "scores of others")
    believe(again.nats.dtype == np.float64, "scores of another type")
    believe(bool((again.tokens == true.tokens).all()), "tokens of others")
    believe(bool((again.nats >= 0.0).all()), "likelihoods above 1")
    believe(bool(((again.correct >= 0) & (again.correct <= again.tokens)).all()), "right and more")


TARGETS = (
    Target("cached number", _write_number, _read_number),
    Target("cached scores", _write_scores, _read_scores, prepare=finished_run),
)

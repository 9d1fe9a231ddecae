"""Users who were all held out cannot be told apart: intervals cover a half as often as they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedsim.attacks.measuring import LogRatios
from fedsim.attacks.roc import auroc, bootstrap
from fedsim.attacks.samples import known_samples
from fedsim.config import ModelConfig, load_config
from fedsim.evaluation.score_cache import ScoreCache
from fedsim.materials import load_materials, load_model
from fedsim.seeding import stream


def test_halves_of_the_held_out_users_are_not_told_apart(attacked: Path, tmp_path: Path) -> None:
    config = load_config(attacked / "config.toml")
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    known = known_samples(materials.store, materials.split, config.data, config.seed)
    kept = ScoreCache(materials.store, tmp_path)
    start, final = (
        load_model(ModelConfig(name_or_path=name, pretraining_steps=steps), 0, 16)
        for name, steps in (("tiny-gpt", 0), (str(attacked / "model"), None))
    )
    nats = [
        kept.scores(model, model.initial_parameters(), known.samples).nats
        for model in (start, final)
    ]
    ratios = LogRatios(nats[0] - nats[1], known.offsets)
    scores = ratios.of(np.flatnonzero(~known.member)).statistic("mean", 2)
    assert len(scores) == 15
    covered = 0
    for trial in range(100):
        shuffled = stream(trial, "attack", 3).permutation(scores)
        half = stream(trial, "attack", 4)
        (interval,) = bootstrap([auroc], shuffled[:7], shuffled[7:], half, 100)
        covered += interval.low <= 0.5 <= interval.high
    assert covered >= 80  # 95 expected of many users; seven a side cost a percentile interval some

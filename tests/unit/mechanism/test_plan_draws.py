"""Where a plan's coins and noise come from, and noise that is too small to be a number."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from fedsim.clip_policy import ConstantClip, NextClip
from fedsim.estimators import WeightedSum
from fedsim.seeding import NoiseKey, base, hashes, noise_key
from fedsim.state import ServerState
from tests.unit.mechanism.test_plan import make_plan


@pytest.mark.parametrize("round", [0, 7])
def test_draws_have_the_address_of_their_purpose(round: int) -> None:
    """A run that is taken up by a later version must draw what it drew."""
    plan = make_plan(seed=11)
    hashed = hashes(base(11, "sampling", round), plan.pool)
    assert np.array_equal(plan.coins.of_units(round), (hashed >> np.uint64(11)) * 2.0**-53)
    assert plan.draws.noise(round) == noise_key(11, "noise", round)


@dataclass(frozen=True)
class Listening(ConstantClip):
    """Keeps the noise that it was given for its count."""

    heard: list[NoiseKey] = field(default_factory=list)

    def after(self, round: int, scale: float, total: WeightedSum, noise: NoiseKey) -> NextClip:
        self.heard.append(noise)
        return NextClip(scale)


def test_the_noise_of_a_count_is_another_than_the_estimates() -> None:
    listening = Listening()
    plan = make_plan(seed=11, clip_policy=listening)
    plan.next_clip(ServerState(7, {}), WeightedSum.zero({}))
    (noise,) = listening.heard
    assert noise == noise_key(11, "clip", 7)


def test_a_secure_plan_has_a_new_key_for_every_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = iter(range(100))
    monkeypatch.setattr("secrets.token_bytes", lambda size: bytes([next(keys)]) * size)
    plan = make_plan(entropy="secure")
    noise = [plan.draws.noise(round).chunk("w", 0) for round in (0, 0, 1)]
    coins = [plan.coins.of_units(0)[0] for _ in range(2)]
    assert next(keys) == 5
    assert len({*coins, *(source.random(1)[0] for source in noise)}) == 5
    assert plan.draws.release_id.startswith("secure:")

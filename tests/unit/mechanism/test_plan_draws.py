"""Where a plan's coins and noise come from, and noise that is too small to be a number."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
import pytest

from fedsim.clip_policy import ConstantClip, NextClip
from fedsim.clipping import FlatClip
from fedsim.estimators import WeightedSum
from fedsim.plan import RoundPlan
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


def test_noise_that_rounds_to_none_is_refused() -> None:
    with pytest.raises(ValueError, match="noise needs a positive multiplier and a finite bound"):
        make_plan(noise_multiplier=1e-310, clip=FlatClip(l2_clip_norm=1e-25))


def test_the_defaults_are_those_that_promise_most_and_do_nothing_else() -> None:
    defaults = {field.name: field.default for field in fields(RoundPlan)}
    assert (defaults["entropy"], defaults["seed"], defaults["assumptions"]) == ("secure", 0, ())
    plan = make_plan()
    assert plan.dropped == {}
    assert plan.moving_clip_norm is None
    executor = object()
    assert plan.around(executor) is executor  # type: ignore[arg-type]


def test_a_task_keeps_its_name_and_options() -> None:
    task = make_plan().task
    assert (task.name, task.options) == ("fedsgd", {})
    with pytest.raises(ValueError, match="frozen"):
        task.name = "another"
    with pytest.raises(ValueError, match="extra"):
        type(task)(name="fedsgd", option=1)  # type: ignore[call-arg]

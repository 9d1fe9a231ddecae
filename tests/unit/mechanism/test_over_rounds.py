"""The rate of a round, the average of parameters, and what a round tells the server's step."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.clip_policy import ClipSchedule
from fedsim.noise.matrix import INDEPENDENT, NoiseMatrix, banded_matrix, buffered_matrix
from fedsim.release import Release
from fedsim.runner.training import train
from fedsim.sampling import CyclicSampling
from fedsim.server.over_rounds import Average, RateSchedule
from fedsim.server_optimizer import ServerOptimizer
from fedsim.state import ServerState
from tests.privacy.test_released_noise import LAYOUT, ZeroUpdates
from tests.unit.mechanism.test_plan import make_plan
from tests.unit.mechanism.test_round import Pull, same_bits, start


def torchs_rates(kind: str, rounds: int) -> list[float]:
    """Of torch's own schedulers, to a fifth."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule: torch.optim.lr_scheduler.LRScheduler = (
        torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.2, rounds)
        if kind == "linear"
        else torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, rounds, 0.2)
    )
    rates = []
    for _ in range(rounds + 1):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_rates_are_those_of_torchs_schedulers(kind: Any) -> None:  # noqa: ANN401
    schedule = RateSchedule(kind, 10, final_share=0.2)
    assert [schedule.share(t) for t in range(11)] == pytest.approx(torchs_rates(kind, 10))
    assert schedule.share(50) == pytest.approx(0.2)
    later = RateSchedule(kind, 14, warmup_rounds=4, final_share=0.2)
    assert [later.share(t) for t in range(4)] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert [later.share(t + 4) for t in range(60)] == [schedule.share(t) for t in range(60)]


def test_the_inverse_square_root_ends_at_its_share_and_falls_as_one() -> None:
    schedule = RateSchedule("inverse-square-root", 11, warmup_rounds=1, final_share=0.25)
    inverse = np.array([schedule.share(t) for t in range(1, 13)]) ** -2.0
    assert (inverse[0], inverse[-2], inverse[-1]) == pytest.approx((1.0, 16.0, 16.0))
    assert np.diff(inverse[:-1]) == pytest.approx(1.5)  # 1 / rate² is linear in the round
    assert RateSchedule("constant", 11, 1).share(500) == 1.0


WEIGHTS = {  # of the parameters after rounds 0 to 7
    Average("tail", 5): [0.0] * 5 + [1 / 3] * 3,
    Average("tail", 0): [1 / 8] * 8,
    Average("tail", 7): [0.0] * 7 + [1.0],
    Average("exponential", 0, 0.5): [2.0**n / 255 for n in range(8)],
    Average("exponential", 4): [0.0] * 4 + [0.9 ** (7 - n) / 3.439 for n in range(4, 8)],
    Average("exponential", 2, 0.0): [0.0] * 7 + [1.0],
}


@pytest.mark.parametrize("average", WEIGHTS, ids=str)
def test_an_average_is_the_weighted_mean_by_hand(average: Average) -> None:
    optimizer = ServerOptimizer("sgd", 0.3, average=average)
    state, seen = start(), []
    for round in range(8):
        release = {name: value.double() - round for name, value in state.parameters.items()}
        before = {name: value.clone() for name, value in state.average.items()}
        after = optimizer.advance(state, Release(release), 0.0, keep=False)
        assert same_bits(state.average, before)
        state = dataclasses.replace(after, round=round + 1)
        seen.append(state.parameters)
        assert state.model is (state.average if round >= average.start else state.parameters)
    for name, value in state.average.items():
        mean = sum(w * p[name].double() for w, p in zip(WEIGHTS[average], seen, strict=True))
        torch.testing.assert_close(value.double(), mean, rtol=1e-6, atol=1e-6)


def test_training_does_not_feel_the_average() -> None:
    plain = make_plan(optimizer=ServerOptimizer("adam", 0.1))
    averaged = make_plan(
        optimizer=ServerOptimizer("adam", 0.1, average=Average("exponential", 0, 0.9))
    )
    left, right = (train(start(), plan, Pull(), 4) for plan in (plain, averaged))
    assert same_bits(left.parameters, right.parameters)
    assert not same_bits(right.model, right.parameters)


@dataclass(frozen=True)
class Told(ServerOptimizer):
    """Keeps round and noise as it is told, beside what the release of zero updates shows."""

    seen: list[tuple[int, float, float]] = field(default_factory=list)

    def advance(
        self, state: ServerState, release: Release, noise_stddev: float, *, keep: bool
    ) -> ServerState:
        flat = torch.cat([value.flatten() for value in release.values.values()])
        self.seen.append((state.round, noise_stddev, float(flat.std())))
        return super().advance(state, release, noise_stddev, keep=keep)


@pytest.mark.parametrize(
    "matrix", [INDEPENDENT, banded_matrix(8, 4), buffered_matrix(8, 4, 2)], ids=lambda m: m.kind
)
def test_the_step_is_told_the_deviation_of_the_noise_in_its_release(matrix: NoiseMatrix) -> None:
    """Of that round: the clip moves, and correlated noise differs from round to round."""
    optimizer = Told("sgd", 1.0)
    sampling = CyclicSampling(8, 4, 1.0)
    plan = make_plan(
        sampling=sampling,
        matrix=matrix,
        optimizer=optimizer,
        clip_policy=ClipSchedule("linear", 0.5, 8),
        entropy="seeded",
    )
    train(ServerState(0, LAYOUT), plan, ZeroUpdates(nobody=False), 8)
    rounds, told, measured = np.array(optimizer.seen).T
    assert rounds.tolist() == list(range(8))
    assert measured == pytest.approx(told, rel=0.02)
    assert told.max() / told.min() > 1.5

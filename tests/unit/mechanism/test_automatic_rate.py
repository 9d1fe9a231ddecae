"""The automatic learning rate: its curvature, its signal, and the rates that follow."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from fedsim.planner.learning_rate import planned_rate
from fedsim.server.automatic_rate import NOISE_LOSS, AutomaticRate
from fedsim.server.over_rounds import RateSchedule
from fedsim.server.start_curvature import StartCurvature, start_curvature
from fedsim.server_optimizer import NON_PRIVATE_RATE, AutomaticOptimizer
from fedsim.state import ServerState
from fedsim.tensors import Tensors

WORDS, ENTRIES = 7, 400


class Unigrams:
    """A network that knows how frequent each word is: its Fisher matrix is diag(p) - p pᵀ."""

    device, vocabulary_size = torch.device("cpu"), WORDS

    def initial_parameters(self) -> dict[str, torch.Tensor]:
        return {"scores": torch.linspace(-2.0, 2.0, WORDS), "unused": torch.zeros(3)}

    def logits(self, parameters: Tensors, tokens: torch.Tensor) -> torch.Tensor:
        return parameters["scores"].expand(*tokens.shape, WORDS)


def test_the_curvature_is_that_of_the_fisher_matrix() -> None:
    network: Any = Unigrams()
    found = start_curvature(network)
    p = torch.linspace(-2.0, 2.0, WORDS).double().softmax(-1).numpy()
    fisher = np.diag(p) - np.outer(p, p)
    # One draw of seven numbers: the cost is a weighted sum of seven squares of them.
    assert 0.2 * np.trace(fisher) < found.trace < 4.0 * np.trace(fisher)
    top = np.linalg.eigvalsh(fisher)[-1]
    assert 0.5 * top < found.largest < 1.05 * top  # five steps reach it from below


def test_the_cost_of_noise_is_that_of_the_network_moved_by_it() -> None:
    """Quadratic where a network is, by a line through logarithms, and beyond the ends too."""
    costs = tuple((2.0**-n, 3.0 * 4.0**-n) for n in range(5, 0, -1))
    curvature = StartCurvature(costs, 1.0)
    assert curvature.trace == pytest.approx(6.0)
    for stddev in (0.001, 0.05, 0.3, 2.0):
        assert curvature.stddev(3.0 * stddev**2) == pytest.approx(stddev)


def quadratic(trace: float, largest: float) -> StartCurvature:
    return StartCurvature(((0.01, trace * 5e-5), (0.1, trace * 5e-3)), largest)


def test_the_noise_of_a_run_costs_what_it_may() -> None:
    """A quadratic loss with a known Hessian, and rounds of noise alone."""
    generator = torch.Generator().manual_seed(0)
    diagonal = torch.rand(ENTRIES, generator=generator, dtype=torch.float64)
    stddev, rounds, curvature = 0.3, 20, quadratic(float(diagonal.sum()), 0.0)
    rate = AutomaticRate(lambda: curvature, 0.01, units=50.0, tokens=64)
    shares = torch.linspace(1.0, 0.0, rounds + 1, dtype=torch.float64)[:-1]
    step = rate.of(2.0, stddev, float(shares.square().sum()))
    losses = []
    for _ in range(200):
        noise = torch.randn(rounds, ENTRIES, generator=generator, dtype=torch.float64)
        moved = step * stddev * (shares[:, None] * noise).sum(0)
        losses.append(float(0.5 * (diagonal * moved.square()).sum()))
    error = np.std(losses) / math.sqrt(len(losses))
    assert abs(np.mean(losses) - 4.0 * NOISE_LOSS) < 4.0 * error < 0.2 * NOISE_LOSS


@pytest.mark.parametrize("alike", [0.0, 0.3])
def test_the_signal_of_releases_is_that_of_the_mean_update(alike: float) -> None:
    """Units of norm C whose mean has the squared norm alike·C², with noise much longer than it."""
    generator = torch.Generator().manual_seed(1)
    bound, stddev, units = 2.0, 0.1, 50
    rate = AutomaticRate(lambda: quadratic(1.0, 1.0), stddev / bound, float(units), 64)
    common = torch.zeros(ENTRIES)
    common[0] = 1.0
    found = []
    for _ in range(400):
        own = torch.randn(units, ENTRIES, generator=generator)
        own[:, 0] = 0.0
        own = own / own.norm(dim=1, keepdim=True)
        update = bound * (math.sqrt(alike) * common + math.sqrt(1.0 - alike) * own)
        release = update.mean(0) + stddev * torch.randn(ENTRIES, generator=generator)
        found.append(rate.signal(float(release.norm()) ** 2, stddev, ENTRIES))
    error = np.std(found) / math.sqrt(len(found))
    # The chance of a cohort is taken off as if units had nothing in common: α/M too much.
    assert abs(np.mean(found) - alike * (1.0 - 1.0 / units)) < 4.0 * error < 0.02
    assert np.std(found) < 3.0 * rate.error(1, ENTRIES)


def sgd() -> AutomaticOptimizer:
    rate = AutomaticRate(lambda: quadratic(600.0, 28.0), 0.01, units=1e9, tokens=64)
    return AutomaticOptimizer("auto", 1.0, rounds=40, rate=rate)


def rates(optimizer: AutomaticOptimizer, norm: Callable[[int], float]) -> list[float]:
    found: list[float] = []
    state: dict[str, torch.Tensor] = {}
    for round in range(40):
        gradient = {"w": torch.full((ENTRIES,), norm(round) / math.sqrt(ENTRIES))}
        start = {"w": torch.zeros(ENTRIES)}
        after, state = optimizer.step(start, dict(gradient), state, round=round, noise_stddev=0.01)
        found.append(float(-after["w"][0] / gradient["w"][0]))
    return found


def test_the_rate_falls_evenly_and_grows_once_where_users_agree() -> None:
    noise = 0.01 * math.sqrt(ENTRIES)
    alone = rates(sgd(), lambda _: noise)
    assert alone == pytest.approx([alone[0] * (1 - t / 40) for t in range(40)])
    agreed = rates(sgd(), lambda _: math.hypot(noise, 0.3))
    assert agreed[:4] == pytest.approx(alone[:4])
    growth = min((0.3**2 - 1e-4 * math.sqrt(2 * ENTRIES / 4)) / 0.03, 4.0)
    assert agreed[4] / alone[4] == pytest.approx(growth, rel=1e-3)
    overshooting = rates(sgd(), lambda round: math.hypot(noise, 0.3 if round < 4 else 3.0))
    assert overshooting == pytest.approx(agreed)
    state = ServerState(40, {"w": torch.zeros(ENTRIES)}, {"rate/signals": torch.full((4,), 0.09)})
    text = f"automatic: {alone[0]:.3g} then {alone[0] * growth:.3g}"
    assert sgd().reported(state, 0.01) == {"server.learning_rate": text}
    before = sgd().reported(replace(state, round=4), 0.01)  # no round has stepped at the second
    assert before == {"server.learning_rate": f"automatic: {alone[0]:.3g}"}
    largest = 16.0 * math.sqrt(600.0 / 64) / 28.0
    assert max(rates(sgd(), lambda _: 10.0)) <= largest


def test_a_plan_has_the_rate_of_its_schedule() -> None:
    """At a constant rate noise costs as much as at a falling one, so that it is smaller."""
    rate = AutomaticRate(lambda: quadratic(1.0, 0.0), 0.01, units=1e9, tokens=64)
    plan = MagicMock(noise_stddev=0.3)
    constant = planned_rate(rate, plan, RateSchedule("constant", 20), 20, 0.0).value
    linear = planned_rate(rate, plan, RateSchedule("linear", 20), 20, 0.0).value
    squares = sum((1 - round / 20) ** 2 for round in range(20))
    assert constant / linear == pytest.approx(math.sqrt(squares / 20), rel=0.05)


def test_without_noise_it_is_adam() -> None:
    optimizer = AutomaticOptimizer("auto", 1.0, rounds=2)
    after, state = optimizer.step({"w": torch.zeros(2)}, {"w": torch.ones(2)}, {})
    assert after["w"].tolist() == pytest.approx([-NON_PRIVATE_RATE] * 2, rel=1e-4)
    later, _ = optimizer.step(after, {"w": torch.ones(2)}, state, round=1)
    assert (after["w"] - later["w"]).tolist() == pytest.approx([NON_PRIVATE_RATE / 2] * 2, rel=1e-4)

"""What a Flower app releases: the noise that was declared, cohorts by coins, bounded users."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from fedsim.strategies.flower import DPFedAvg
from tests.unit.grids.flower_apps import Local, ManyNodes, Weights, client, record, weights_of

START = {"wide": np.zeros((150, 200), np.float32), "bias": np.zeros(30_000, np.float32)}
TERMS: dict[str, Any] = {"num_users": 40, "cohort_size": 10, "l2_clip_norm": 0.3, "delta": 1e-5}


def released(strategy: DPFedAvg, local: Local, num_nodes: int = 40) -> npt.NDArray[np.float64]:
    """What one round moves the weights by."""
    result = strategy.start(ManyNodes(client(local), num_nodes), record(START), num_rounds=1)
    moved = weights_of(result.arrays)
    return np.concatenate([(moved[name] - START[name]).ravel() for name in START]).astype(float)


def p_value(sample: npt.NDArray[np.float64], stddev: float) -> float:
    return float(stats.kstest(sample, stats.norm(0.0, stddev).cdf).pvalue)


def unmoved(node: int, weights: Weights) -> Weights:
    return weights


@pytest.mark.parametrize(
    "norm", [0.3, {"wide": 0.18, "bias": 0.24}], ids=["flat", "per-layer"]
)  # both bounds are 0.3
@pytest.mark.parametrize("draw", [{"noise": "seeded", "seed": 3}, {"noise": "secure"}])
@pytest.mark.parametrize("num_nodes", [40, 3], ids=["declared", "fewer connected"])
def test_released_noise_of_a_flower_round(
    draw: dict[str, Any], norm: object, num_nodes: int
) -> None:
    strategy = DPFedAvg(**(TERMS | {"l2_clip_norm": norm}), noise_multiplier=0.8, **draw)
    stddev = 0.8 * 0.3 / 10  # by hand: multiplier * norm / expected cohort, whoever is connected
    sample = released(strategy, unmoved, num_nodes)
    assert p_value(sample, stddev) > 1e-4
    assert p_value(sample, 1.1 * stddev) < 1e-4
    assert p_value(sample, 0.9 * stddev) < 1e-4


def test_an_empty_cohort_of_nodes_releases_noise() -> None:
    terms = TERMS | {"cohort_size": 1e-9}
    strategy = DPFedAvg(**terms, noise_multiplier=0.8)
    grid = ManyNodes(client(unmoved), 40)
    result = strategy.start(grid, record(START), num_rounds=1)
    assert grid.asked[0] == []
    assert p_value(weights_of(result.arrays)["bias"].astype(float) * 1e-9, 0.8 * 0.3) > 1e-4
    assert strategy.ledger.num_releases == 1


@pytest.mark.parametrize("draw", [{"noise": "seeded", "seed": 5}, {"noise": "secure"}])
def test_cohorts_of_nodes_are_independent_coins(draw: dict[str, Any]) -> None:
    small = {"w": np.zeros(2, np.float32)}
    strategy = DPFedAvg(**TERMS, noise_multiplier=1.0, **draw)
    grid = ManyNodes(client(unmoved), 40)
    strategy.start(grid, record(small), num_rounds=300)
    cohorts = [asked for turn, asked in enumerate(grid.asked) if turn % 2 == 0]
    sizes = np.array([len(cohort) for cohort in cohorts])
    assert len(sizes) == 300
    edges = [0, 6, 8, 9, 10, 11, 12, 14, 41]
    counts, _ = np.histogram(sizes, edges)
    law = stats.binom(40, 0.25)
    expected = np.diff(law.cdf(np.array(edges) - 1)) * 300
    assert stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > 1e-4
    times = np.array([sum(node in cohort for cohort in cohorts) for node in grid.nodes])
    assert np.all(np.abs(times - 75) < 5 * np.sqrt(300 * 0.25 * 0.75))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -3e38, 1e30, 5.0])
def test_no_node_moves_the_release_by_more_than_the_sensitivity(bad: float) -> None:
    terms = TERMS | {"num_users": 10, "cohort_size": 10}

    def trained(node: int, weights: Weights, bad_node: int) -> Weights:
        step = np.float32(bad) if node == bad_node else np.float32(1e-4 * node)
        return {name: value + step for name, value in weights.items()}

    with_it = released(
        DPFedAvg(**terms, noise_multiplier=0.0), lambda node, w: trained(node, w, 9), 10
    )
    without = released(
        DPFedAvg(**terms, noise_multiplier=0.0), lambda node, w: trained(node, w, 9), 9
    )
    distance = float(np.linalg.norm(with_it - without))
    sensitivity = 0.3 / 10
    assert distance <= sensitivity * (1 + 1e-5)
    # A NaN or an infinity counts as zero; anything finite is scaled to the very bound.
    assert distance == pytest.approx(sensitivity if np.isfinite(bad) else 0.0, rel=1e-3, abs=1e-9)

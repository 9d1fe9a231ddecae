"""The pieces of `fedsim bench grids`: a client that computes nothing is still a client."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import torch
from flwr.serverapp import Grid
from transformers import GPT2Config

from fedsim.clients.app import app as own_app
from fedsim.experiments.benchmarks.grids.bytes import Watched
from fedsim.experiments.benchmarks.grids.null_client import CLIP, app, null_spec, parameters_of
from fedsim.experiments.benchmarks.grids.population import plan_of
from fedsim.experiments.benchmarks.server import bench_server as server
from fedsim.experiments.benchmarks.server.large_round import app as timed_app
from fedsim.experiments.benchmarks.timing import in_own_process
from fedsim.grids.executor import GridExecutor
from fedsim.grids.in_process import InProcessGrid
from fedsim.materials import Materials
from fedsim.round import run_round
from fedsim.state import ServerState
from tests.conftest import small_config
from tests.contracts.test_executors import TASKS, client_spec


def test_a_round_without_computation_is_a_whole_round() -> None:
    """Coins, shards, checks, noise and ledger are real; only the sum is zero."""
    executor = GridExecutor(InProcessGrid(app), null_spec(), shard_size=7)
    plan = plan_of(num_users=500, cohort_size=50)
    state, record = run_round(ServerState(0, parameters_of(1_000)), plan, executor)
    assert record.num_units == len(plan.cohort(0)) > 0
    assert record.estimate_norm == 0.0
    assert state.ledger.num_releases == 1
    moved = torch.cat([value.flatten() for value in state.parameters.values()])
    assert moved.numel() == 1_000
    assert bool((moved != 0.0).all())  # the noise, and Adam's step along it


def test_a_watched_grid_counts_what_it_passes_on() -> None:
    """A copy of the parameters out and a float32 sum in for each message, and little besides."""
    parameters = parameters_of(100_000)
    watched = Watched(InProcessGrid(app))
    executor = GridExecutor(cast("Grid", watched), null_spec(), shard_size=50)
    for _ in range(2):  # each round anew
        executor.clipped_sum(parameters, np.arange(150), CLIP, 0)
        assert 1.0 < watched.num_bytes / (3 * 2 * 4 * 100_000) < 1.05
    assert watched.engine_seconds == [0.0] * 3


def test_a_timed_client_answers_as_fedsims_own(speeches: Path, materials: Materials) -> None:
    spec = client_spec(small_config(speeches), TASKS["fedsgd"])
    parameters, cohort = materials.model.initial_parameters(), np.arange(4)
    watched = Watched(InProcessGrid(timed_app))
    timed = GridExecutor(cast("Grid", watched), spec).clipped_sum(parameters, cohort, CLIP, 0)
    own = GridExecutor(InProcessGrid(own_app), spec).clipped_sum(parameters, cohort, CLIP, 0)
    assert all(torch.equal(timed.values[name], value) for name, value in own.values.items())
    assert watched.engine_seconds[0] > 0.0


def test_the_servers_parts() -> None:
    tiny = GPT2Config(vocab_size=50, n_positions=16, n_embd=8, n_layer=1, n_head=2)
    rows = server.run({"tiny": tiny})
    assert [row["case"].removeprefix("tiny: ") for row in rows] == [
        "copy and add",
        "estimate",
        "ledger",
        "Adam's step",
        "is finite",
        "all but noise",
        "sums of 4 workers",
        "fastest generator",
        "numpy's fastest in float64",
        "estimate and noise, seeded",
        "estimate and noise, secure",
        "estimate and noise, 4 bands",
        "estimate and noise, BLT of 2 buffers",
    ]
    first = rows[0]
    assert first["seconds"] is not None
    assert first["details"]["parameters"] == sum(
        shape.numel() for shape in server.shapes_of(tiny).values()
    )
    assert first["ratio_to_floor"] == 1.0 < rows[5]["ratio_to_floor"]  # it does far more


def test_the_peak_counts_the_rounds_copies() -> None:
    """Five at least: parameters, two moments, a float64 sum. A small model's working memory adds
    some that depend on the machine's threads."""
    config = GPT2Config(vocab_size=50_000, n_positions=16, n_embd=256, n_layer=1, n_head=2)
    peak = in_own_process(server.__name__, config.to_json_string())
    assert 5.0 < peak["float32_copies"] < 20.0

"""Sums, noise and steps on workers: the central path's release, and nothing of a broken round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st

from fedsim.audit.canaries import WatchedOptimizer
from fedsim.clip_policy import AdaptiveClip
from fedsim.config import parse_config
from fedsim.errors import ConfigError
from fedsim.estimators import ClippedDenominator, WeightedSum
from fedsim.experiments.benchmarks.grids.null_client import null_spec
from fedsim.grids import member
from fedsim.grids.build import check_reduce
from fedsim.grids.collective import CollectiveExecutor, SharedTensors
from fedsim.grids.executor import GridExecutor
from fedsim.grids.in_process import InProcessGrid
from fedsim.grids.ray_grid import RayGrid
from fedsim.grids.records import ParametersOnDevice, ShardRequest
from fedsim.grids.shares import Shares
from fedsim.noise.gaussian import CHUNK
from fedsim.noise.matrix import banded_matrix
from fedsim.plan import RoundPlan
from fedsim.runner.training import train
from fedsim.sampling import CyclicSampling
from fedsim.server.over_rounds import Average
from fedsim.server_optimizer import AutomaticOptimizer, ServerOptimizer
from fedsim.state import RoundRecord, ServerState
from fedsim.tensors import Tensors
from tests.helpers.forked_crew import Forks
from tests.unit.mechanism.test_plan import make_plan
from tests.unit.mechanism.test_round import same_bits

app = ClientApp()
_on_device = ParametersOnDevice()


@app.train()
def pull(message: Message, context: Context) -> Message:
    """Each unit pulls the parameters towards its own number, a hundredth at most."""
    request = ShardRequest.from_content(message.content)
    parameters = _on_device(request.parameters, torch.device("cpu"))
    total = WeightedSum.zero(parameters)
    for key in request.keys:
        values = {name: (value.double() - key / 100) / 100 for name, value in parameters.items()}
        total += WeightedSum(values, 1.0, 1, 0, 3, 0.5, num_unclipped=int(key) % 2)
    return Message(request.reply(total).to_content(), reply_to=message)


def start() -> ServerState:
    shapes = {"a": (), "b": (7,), "w": (3, CHUNK - 1), "m": (2, CHUNK + 1), "z": (5, 3)}
    generator = torch.Generator().manual_seed(1)
    parameters = {n: torch.randn(shape, generator=generator) for n, shape in shapes.items()}
    return ServerState(0, parameters)


class Three(InProcessGrid):
    """Cuts a cohort as three workers do."""

    def get_node_ids(self) -> list[int]:
        return [2, 3, 4]


@pytest.fixture(scope="module")
def crew() -> Iterator[Forks]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(member, "_PIECE", 2**16)
        trained(None, make_plan(), 1)  # what a step imports, each fork would
        with Forks(app, 3) as started:
            yield started


def trained(crew: Forks | None, plan: RoundPlan, rounds: int = 3) -> tuple[ServerState, list[Any]]:
    records: list[RoundRecord] = []
    if crew is None:
        executor = GridExecutor(Three(app), null_spec())
    else:
        whole = plan.optimizer.name in ("adafactor", "muon")
        executor = CollectiveExecutor(crew, null_spec(), whole=whole)
    state = train(
        start(), plan, executor, rounds, on_round=lambda _, record: records.append(record)
    )
    return state, records


ADAM = ServerOptimizer("adam", 0.01)
PLANS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": ServerOptimizer("sgd", 0.5, keys={"momentum": 0.9})},
    "adam": {"optimizer": ADAM},
    "debiased": {"optimizer": replace(ADAM, debias=True)},
    "adafactor": {"optimizer": ServerOptimizer("adafactor", 0.01)},
    "muon": {"optimizer": ServerOptimizer("muon", 0.01)},
    "automatic": {"optimizer": AutomaticOptimizer("auto", 1.0, rounds=3), "noise_multiplier": 0.0},
    "bounded and averaged": {
        "optimizer": ServerOptimizer("sgd", 0.5, 0.1, average=Average("tail", 1))
    },
    "clipped": {"optimizer": ADAM, "estimator": ClippedDenominator(0.25, 10.0)},
    "adaptive": {"optimizer": ADAM, "clip_policy": AdaptiveClip(0.5, 0.2, 5.0, 5.0)},
}


@pytest.mark.parametrize("changes", PLANS.values(), ids=PLANS)
def test_workers_release_what_one_process_does(crew: Forks, changes: dict[str, Any]) -> None:
    plan = make_plan(**changes)
    (state, records), (expected, others) = trained(crew, plan), trained(None, plan)
    assert isinstance(state.parameters, SharedTensors)
    for part in ("parameters", "optimizer_state", "average"):
        assert_close(getattr(state, part), getattr(expected, part))
    assert (state.round, state.ledger) == (expected.round, expected.ledger)
    assert state.clip_scale == expected.clip_scale
    for record, other in zip(records, others, strict=True):
        told, wanted = (dict(each.to_json()) for each in (record, other))
        assert told.keys() == wanted.keys()
        for key, value in wanted.items():
            assert told[key] == (value if value is None else pytest.approx(value, rel=1e-6))


def assert_close(given: Tensors, expected: Tensors) -> None:
    assert set(given) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(given[name], value, rtol=1e-5, atol=1e-7)


WHERE = ("between rounds", "compute", "exchange 2", "after noise", "exchange 6", "after step")
"""The sum of a share takes exchanges 1 to 4, its parameters 5 to 8."""


@pytest.mark.parametrize("where", WHERE)
def test_a_worker_that_dies_changes_nothing(crew: Forks, where: str) -> None:
    """SIGKILL in the second of three rounds, which is made again: same bits, and one charge."""
    plan, lost, seen = make_plan(optimizer=ADAM), crew.lost, []

    def before_round(state: ServerState) -> None:
        seen.append(state)
        if state.round == 1 and where == "between rounds":
            crew.replace(1)
        elif state.round == 1:
            crew.deaths.append((1, where))

    executor = CollectiveExecutor(crew, null_spec())
    state = train(start(), plan, executor, 3, before_round=before_round)
    expected, _ = trained(crew, plan)
    assert crew.lost == lost + 1
    assert [each.round for each in seen] == [0, 1, 2]
    for part in ("parameters", "optimizer_state"):
        assert same_bits(getattr(state, part), getattr(expected, part))
    assert state.ledger == expected.ledger
    assert [item.num_rounds for item in state.ledger.items] == [3]


def test_a_run_goes_on_from_a_state_of_the_central_path(crew: Forks) -> None:
    plan = make_plan(optimizer=ADAM)
    middle, expected = trained(None, plan, 1)[0], trained(None, plan)[0]
    state = train(middle, plan, CollectiveExecutor(crew, null_spec()), 3)
    assert_close(state.parameters, expected.parameters)
    assert_close(state.optimizer_state, expected.optimizer_state)


REFUSED: dict[str, dict[str, Any]] = {
    "strategy.name": {"wrapper": lambda executor, _: executor},
    "server.optimizer": {"optimizer": WatchedOptimizer("sgd", 1.0, inner=ADAM, watch=print)},
    "privacy.mechanism": {
        "matrix": banded_matrix(8, 4),
        "sampling": CyclicSampling(8, 4, 1.0),
    },
}


@pytest.mark.parametrize(("field", "changes"), REFUSED.items(), ids=REFUSED)
def test_what_only_the_server_can_do_is_refused(field: str, changes: dict[str, Any]) -> None:
    config = parse_config({"executor": {"grid": "ray", "reduce": "collective"}})
    grid = object.__new__(RayGrid)
    check_reduce(config, make_plan(), grid)
    with pytest.raises(ConfigError, match=rf"executor.reduce.*{field}.*take reduce"):
        check_reduce(config, make_plan(**changes), grid)
    with pytest.raises(ConfigError, match=r"executor\.grid.*needs workers of Ray"):
        check_reduce(config, make_plan(), InProcessGrid(app))


@given(
    sizes=st.lists(st.integers(1, 3 * CHUNK), min_size=1, max_size=5),
    count=st.integers(1, 6),
    whole=st.booleans(),
)
def test_shares_are_the_parameters_cut_where_noise_is(
    sizes: list[int], count: int, whole: bool
) -> None:
    tensors = {f"p{n}": torch.arange(size) + 7 * n for n, size in enumerate(sizes)}
    state = {f"{name}/step": torch.tensor(3.0) for name in tensors} | {
        f"{name}/mean": -value for name, value in tensors.items()
    }
    shares = Shares.of(tensors, count, whole=whole)
    for each in (tensors, state):
        assert same_bits(shares.join([shares.cut(each, rank) for rank in range(count)]), each)
    total = sum(sizes)
    assert sum(shares.size(rank) for rank in range(count)) == total
    if not whole:
        assert all(abs(shares.size(rank) - total / count) <= CHUNK for rank in range(count))
    for spans in shares.spans:
        assert all(span.start % CHUNK == 0 for span in spans)
        assert all(span.stop - span.start == sizes[int(span.name[1:])] for span in spans if whole)

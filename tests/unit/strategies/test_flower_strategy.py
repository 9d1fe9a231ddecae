"""The strategy for Flower apps: FedAvg's arithmetic, the ledger, and what it refuses."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from fedsim.accounting.accountants import epsilon
from fedsim.errors import BudgetSpentError, ConfigError
from fedsim.experiments.flower_quickstart import client_app, server_app
from fedsim.strategies.flower import DPFedAvg
from tests.unit.grids.flower_apps import (
    BIG_NODE,
    Local,
    ManyNodes,
    Weights,
    client,
    no_collecting,
    record,
    weights_of,
)

START = {
    "layer.weight": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
    "layer.bias": np.ones(3, np.float32),
    "scale": np.array(2.0, np.float32),
}
EVERYBODY: dict[str, Any] = {"num_users": 6, "cohort_size": 6, "l2_clip_norm": 1e6, "delta": 1e-5}
HALF: dict[str, Any] = EVERYBODY | {"cohort_size": 3, "l2_clip_norm": 1.0}
SEEDED: dict[str, Any] = {"noise": "seeded", "seed": 1}


def pulled(node: int, weights: Weights) -> Weights:
    """A local step that depends on node and weights, not linearly in either."""
    return {name: np.cos(value * (node + 1)).astype(np.float32) for name, value in weights.items()}


def test_without_noise_and_clip_it_is_fedavg_by_hand() -> None:
    strategy = DPFedAvg(**EVERYBODY, noise_multiplier=0.0, server_learning_rate=0.5)
    result = strategy.start(ManyNodes(client(pulled), 6), record(START), num_rounds=3)
    expected = {name: value.astype(float) for name, value in START.items()}
    for _ in range(3):
        expected = {
            name: 0.5 * value + 0.5 * np.mean([np.cos(value * (n + 1)) for n in range(6)], axis=0)
            for name, value in expected.items()
        }
    assert list(result.arrays) == list(START)
    for name, value in weights_of(result.arrays).items():
        assert value.dtype == np.float32
        assert value.shape == START[name].shape
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)


def test_the_clip_and_the_fixed_denominator_by_hand() -> None:
    strategy = DPFedAvg(**HALF, noise_multiplier=0.0, **SEEDED)
    grid = ManyNodes(client(lambda _, w: {k: v + 10 for k, v in w.items()}), 6)
    result = strategy.start(grid, record(START), num_rounds=1)
    drawn = len(grid.asked[0])
    assert drawn != 3  # else it would not tell the drawn from the expected cohort size
    step = 1.0 / np.sqrt(10) * drawn / 3  # 10 entries, each moved alike by updates of norm 1
    for name, value in weights_of(result.arrays).items():
        np.testing.assert_allclose(value - START[name], step, rtol=1e-5)


def test_the_drop_in_has_the_interface_of_a_strategy() -> None:
    strategy = DPFedAvg(**HALF, noise_multiplier=1.0)
    assert isinstance(strategy, Strategy)
    seen: list[int] = []
    result = strategy.start(
        ManyNodes(client(pulled), 6),
        record(START),
        num_rounds=2,
        timeout=9.0,
        evaluate_fn=lambda round, arrays: seen.append(round),
    )
    assert isinstance(result, Result)
    assert seen == [0, 1, 2]
    assert result.train_metrics_clientapp == {}  # private
    assert result.evaluate_metrics_clientapp == {}


def test_clients_evaluate_as_with_fedavg_when_asked_to() -> None:
    ours = DPFedAvg(**HALF, noise_multiplier=1.0, fraction_evaluate=0.5)
    theirs = FedAvg(fraction_evaluate=0.5)
    grid = ManyNodes(client(pulled), 6)
    result = ours.start(grid, record(START), num_rounds=1)
    assert result.evaluate_metrics_clientapp[1] == {"accuracy": 0.5}
    assert len(grid.asked[1]) == 3
    same = theirs.start(ManyNodes(client(pulled), 6), record(START), num_rounds=1)
    assert same.evaluate_metrics_clientapp[1] == {"accuracy": 0.5}


def test_each_round_is_charged_once_also_over_two_starts() -> None:
    strategy = DPFedAvg(**HALF, noise_multiplier=1.5, **SEEDED)
    grid = ManyNodes(client(lambda _, weights: weights), 6)
    first = strategy.start(grid, record(START), num_rounds=4)
    again = strategy.start(grid, record(START), num_rounds=4)
    (item,) = strategy.ledger.items
    assert (item.first_round, item.num_rounds, item.cost) == (0, 8, strategy.plan.cost)
    assert strategy.plan.cost.sampling.probability == 0.5
    # The second start from the same arrays goes on with fresh noise.
    assert not np.allclose(
        weights_of(first.arrays)["layer.bias"], weights_of(again.arrays)["layer.bias"]
    )
    spent = epsilon(strategy.plan.cost, 8, 1e-5)
    statement = strategy.privacy_statement()
    assert strategy.ledger.epsilon(1e-5) == pytest.approx(spent)
    for word in (f"ε = {spent:.3f}"[:7], "δ = 1e-05", "8 rounds of Poisson", "add-or-remove"):
        assert word in statement


def test_seeded_apps_repeat_and_secure_ones_do_not() -> None:
    def bias(draw: dict[str, Any]) -> npt.NDArray[np.float32]:
        strategy = DPFedAvg(**HALF, noise_multiplier=1.0, **draw)
        result = strategy.start(ManyNodes(client(pulled), 6), record(START), num_rounds=2)
        return weights_of(result.arrays)["layer.bias"]

    assert np.array_equal(bias(SEEDED), bias(SEEDED))
    assert not np.array_equal(bias({}), bias({}))


def test_the_budget_stops_before_a_client_is_asked() -> None:
    strategy = DPFedAvg(**HALF, epsilon=4.0, num_rounds=3)
    grid = ManyNodes(client(pulled), 6)
    with pytest.raises(BudgetSpentError, match="num_rounds = 4"):
        strategy.start(grid, record(START), num_rounds=4)
    assert grid.asked == []
    strategy.start(grid, record(START), num_rounds=3)
    assert 3.9 < strategy.ledger.epsilon(1e-5) <= 4.0
    with pytest.raises(BudgetSpentError, match="pays for 0 more"):
        strategy.start(grid, record(START), num_rounds=1)
    # Flower's own loop, or anybody's, meets the same end without `start`.
    with pytest.raises(BudgetSpentError):
        strategy.configure_train(4, record(START), ConfigRecord(), grid)


class Tampered(ManyNodes):
    """Changes the list of replies on its way back."""

    def __init__(self, app: ClientApp, change: Callable[[list[Message]], list[Message]]) -> None:
        super().__init__(app, 6)
        self.change = change

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        kept = list(messages)
        replies = list(super().send_and_receive(kept, timeout=timeout))
        return iter(self.change(replies) if kept else replies)


def failed(replies: list[Message]) -> list[Message]:
    asked = Message(RecordDict(), replies[0].metadata.src_node_id, "train")
    return [Message(Error(1, "out of memory"), reply_to=asked), *replies[1:]]


TAMPERINGS: dict[str, tuple[Callable[[list[Message]], list[Message]], str]] = {
    "missing": (lambda replies: replies[1:], r"round 0: no reply from the nodes \["),
    "all missing": (lambda replies: [], "no reply from the nodes"),
    "twice": (lambda replies: [*replies, replies[2]], "twice or without a request"),
    "error": (failed, "failed: out of memory"),
}


@pytest.mark.parametrize(("change", "message"), TAMPERINGS.values(), ids=TAMPERINGS)
def test_a_partial_cohort_is_never_released(
    change: Callable[[list[Message]], list[Message]], message: str
) -> None:
    strategy = DPFedAvg(**EVERYBODY, noise_multiplier=1.0)
    with pytest.raises(RuntimeError, match=message):
        strategy.start(Tampered(client(pulled), change), record(START), num_rounds=1)
    assert strategy.ledger.num_releases == 0


def test_no_reply_waits_for_a_garbage_collection() -> None:
    """Each is as large as the parameters."""
    left: list[weakref.ref[ArrayRecord]] = []

    def watched(replies: list[Message]) -> list[Message]:
        parts = [part for one in replies for part in one.content.values()]
        left.extend(weakref.ref(part) for part in parts if isinstance(part, ArrayRecord))
        return replies

    strategy = DPFedAvg(**EVERYBODY, noise_multiplier=1.0)
    with no_collecting():
        strategy.start(Tampered(client(pulled), watched), record(START), num_rounds=1)
        assert [part() for part in left] == [None] * 6


def test_the_order_of_replies_changes_no_bit() -> None:
    def run(change: Callable[[list[Message]], list[Message]]) -> Weights:
        strategy = DPFedAvg(**EVERYBODY, noise_multiplier=1.0, **SEEDED)
        return weights_of(
            strategy.start(Tampered(client(pulled), change), record(START), num_rounds=2).arrays
        )

    forwards, backwards = run(list), run(lambda replies: replies[::-1])
    assert all(np.array_equal(forwards[name], backwards[name]) for name in START)


@pytest.mark.parametrize(
    ("local", "message"),
    [
        (lambda _, w: {"scale": w["scale"]}, "parameter names differ"),
        (lambda _, w: {**w, "layer.bias": np.ones(1, np.float32)}, "has shape"),
    ],
)
def test_a_reply_of_another_shape_fails_the_round(local: Local, message: str) -> None:
    strategy = DPFedAvg(**EVERYBODY, noise_multiplier=1.0)
    with pytest.raises(RuntimeError, match=f"node {BIG_NODE}: .*{message}"):
        strategy.start(ManyNodes(client(local), 6), record(START), num_rounds=1)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "num_users": ({"num_users": 0}, "num_users = 0: give an integer >= 1"),
    "cohort_size": ({"cohort_size": 7}, r"cohort_size = 7: give a number in \(0, num_users = 6\]"),
    "clip": ({"l2_clip_norm": float("nan")}, "l2_clip_norm = nan: give"),
    "delta": ({"delta": 1.0}, "delta = 1.0: give"),
    "both": ({"epsilon": 1.0}, "noise_multiplier = 1.0, epsilon = 1.0: give exactly one"),
    "neither": ({"noise_multiplier": None}, "give exactly one"),
    "rounds missing": ({"noise_multiplier": None, "epsilon": 1.0}, "num_rounds = None: give"),
    "seed missing": ({"noise": "seeded"}, "seed = None: give an integer"),
    "evaluate": ({"fraction_evaluate": 2.0}, "fraction_evaluate = 2.0: give"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_wrong_values_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DPFedAvg(**(HALF | {"noise_multiplier": 1.0} | change))


@pytest.mark.parametrize(
    ("norm", "arrays", "message"),
    [
        (1.0, {"count": np.array([3])}, r"arrays\['count'\].dtype = 'int64': give floating"),
        (1.0, {"w": np.array([np.nan], np.float32)}, "give finite numbers"),
        (1.0, {}, "arrays = "),
        ({"layer": 1.0}, START, r"give a norm for each of \['layer', 'scale'\]"),
    ],
)
def test_arrays_that_cannot_be_averaged_are_named(
    norm: object, arrays: Weights, message: str
) -> None:
    strategy = DPFedAvg(**(HALF | {"l2_clip_norm": norm}), noise_multiplier=1.0)
    with pytest.raises(ConfigError, match=message):
        strategy.start(ManyNodes(client(pulled), 6), record(arrays), num_rounds=1)


def test_the_example_app_runs_and_learns(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").addHandler(caplog.handler)
    try:
        context = Context(1, 1, {}, RecordDict(), {"num-server-rounds": 8})
        server_app.app(ManyNodes(client_app.app, 100), context)
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)
    statement = caplog.messages[-1]
    assert statement.startswith("Every user has (ε = ")
    assert "for 8 rounds of Poisson sampling of users" in statement
    scores = [text for text in caplog.messages if "accuracy" in text and "MetricRecord" in text]
    assert float(scores[-1].rpartition("accuracy': ")[2].rstrip("})")) > 0.75

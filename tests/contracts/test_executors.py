"""The sum of a cohort does not depend on its shards, and a partial one is never released."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from flwr.app import Error, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.clients.app import app
from fedsim.clipping import FlatClip
from fedsim.config import Config
from fedsim.estimators import WeightedSum
from fedsim.grids.executor import GridExecutor
from fedsim.grids.in_process import InProcessGrid
from fedsim.grids.records import ClientSpec, ShardReply
from fedsim.materials import Materials
from fedsim.plan import TaskSpec
from fedsim.tensors import l2_norm
from tests.conftest import small_config

CLIP = FlatClip(l2_clip_norm=0.1665)  # about the middle of the gradients' norms
TASKS = {
    "fedsgd": TaskSpec(name="fedsgd", options={"group_size": 2, "user_weight_cap": 4}),
    "fedavg": TaskSpec(name="fedavg", options={"group_size": 2, "batch_size": 1}),
    "example": TaskSpec(name="example-gradient"),
}


@pytest.fixture(scope="module")
def config(speeches: object) -> Config:
    return small_config(str(speeches))  # type: ignore[arg-type]


def client_spec(config: Config, task: TaskSpec) -> ClientSpec:
    return ClientSpec(
        seed=config.seed,
        data=config.data,
        model=config.model,
        task=task,
        engine="auto",
        device="cpu",
    )


def relative(left: WeightedSum, right: WeightedSum) -> float:
    difference = {name: left.values[name] - right.values[name] for name in right.values}
    return l2_norm(difference) / max(l2_norm(right.values), 1e-300)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_any_sharding_gives_the_same_sum(
    config: Config, materials: Materials, task: TaskSpec
) -> None:
    parameters = materials.model.initial_parameters()
    spec = client_spec(config, task)

    @lru_cache(maxsize=64)
    def one_user(key: int) -> WeightedSum:
        executor = GridExecutor(InProcessGrid(app), spec, shard_size=1)
        return executor.clipped_sum(parameters, np.array([key]), CLIP, 3)

    @settings(max_examples=12, deadline=None)
    @given(
        cohort=st.lists(st.integers(0, 23), unique=True, max_size=6).map(sorted),
        size=st.integers(0, 4),
    )
    def check(cohort: list[int], size: int) -> None:
        executor = GridExecutor(InProcessGrid(app), spec, shard_size=size)
        total = executor.clipped_sum(parameters, np.array(cohort, dtype=np.int64), CLIP, 3)
        alone = sum((one_user(key) for key in cohort), WeightedSum.zero(parameters))
        # A difference of float32 parameters near 1 carries their rounding, not its own.
        assert relative(total, alone) < (2e-5 if task.name == "fedavg" else 1e-6)
        assert total.num_units == len(cohort)
        assert total.weight == pytest.approx(alone.weight)
        assert total.num_gradients == alone.num_gradients
        assert total.num_unclipped == alone.num_unclipped

    check()


def test_an_empty_cohort_sends_no_message(config: Config, materials: Materials) -> None:
    class Silent(InProcessGrid):
        def send_and_receive(
            self, messages: Iterable[Message], *, timeout: float | None = None
        ) -> Iterator[Message]:
            assert not list(messages)
            return iter(())

    executor = GridExecutor(Silent(app), client_spec(config, TASKS["fedsgd"]))
    total = executor.clipped_sum(
        materials.model.initial_parameters(), np.array([], dtype=np.int64), CLIP, 0
    )
    assert (total.num_units, l2_norm(total.values)) == (0, 0.0)


def twice(replies: list[Message]) -> list[Message]:
    return [*replies, replies[0]]


def one_lost(replies: list[Message]) -> list[Message]:
    return replies[1:]


def one_failed(replies: list[Message]) -> list[Message]:
    failed = Message(Error(code=0, reason="worker ran out of memory"), reply_to=replies[0])
    return [failed, *replies[1:]]


def one_user_short(replies: list[Message]) -> list[Message]:
    reply = ShardReply.from_content(replies[0].content)
    total = WeightedSum(reply.total.values, reply.total.weight, reply.total.num_units - 1)
    replies[0].content = ShardReply(reply.round, reply.shard, total).to_content()
    return replies


def another_shard(replies: list[Message]) -> list[Message]:
    reply = ShardReply.from_content(replies[0].content)
    replies[0].content = ShardReply(reply.round, 99, reply.total).to_content()
    return replies


def another_round(replies: list[Message]) -> list[Message]:
    reply = ShardReply.from_content(replies[0].content)
    replies[0].content = ShardReply(reply.round + 1, reply.shard, reply.total).to_content()
    return replies


def not_finite(replies: list[Message]) -> list[Message]:
    reply = ShardReply.from_content(replies[0].content)
    values = {name: torch.full_like(value, torch.inf) for name, value in reply.total.values.items()}
    total = replace(reply.total, values=values)
    replies[0].content = ShardReply(reply.round, reply.shard, total).to_content()
    return replies


def unreadable(replies: list[Message]) -> list[Message]:
    del replies[0].content["counts"]
    return replies


@pytest.mark.parametrize(
    ("tamper", "complaint"),
    [
        (twice, "came twice"),
        (one_lost, "got no reply"),
        (one_failed, "worker ran out of memory"),
        (one_user_short, "has 1 units, but 2 were sent"),
        (another_shard, "without a request"),
        (another_round, "shard 0 of round 1 came twice or without a request"),
        (not_finite, "norm inf and weight"),
        (unreadable, "a reply that is not this fedsim's: KeyError"),
    ],
)
def test_a_wrong_set_of_replies_fails_the_round(
    config: Config,
    materials: Materials,
    tamper: Callable[[list[Message]], list[Message]],
    complaint: str,
) -> None:
    class Tampered(InProcessGrid):
        def send_and_receive(
            self, messages: Iterable[Message], *, timeout: float | None = None
        ) -> Iterator[Message]:
            return iter(tamper(list(super().send_and_receive(messages, timeout=timeout))))

    executor = GridExecutor(Tampered(app), client_spec(config, TASKS["fedsgd"]), shard_size=2)
    with pytest.raises(RuntimeError, match=complaint):
        executor.clipped_sum(materials.model.initial_parameters(), np.arange(6), CLIP, 0)


def test_replies_in_any_order_fold_to_the_same_bits(config: Config, materials: Materials) -> None:
    class Backwards(InProcessGrid):
        def send_and_receive(
            self, messages: Iterable[Message], *, timeout: float | None = None
        ) -> Iterator[Message]:
            return reversed(list(super().send_and_receive(messages, timeout=timeout)))

    spec, parameters = client_spec(config, TASKS["fedsgd"]), materials.model.initial_parameters()
    totals = [
        GridExecutor(grid(app), spec, shard_size=2).clipped_sum(parameters, np.arange(9), CLIP, 0)
        for grid in (InProcessGrid, Backwards)
    ]
    assert all(
        bool((totals[0].values[name] == totals[1].values[name]).all()) for name in parameters
    )

"""Replies that are not what a worker writes fail the round, with a message, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from fedsim.clipping import FlatClip
from fedsim.estimators import WeightedSum
from fedsim.experiments.benchmarks.grids.null_client import null_spec
from fedsim.grids.executor import GridExecutor
from fedsim.grids.records import ShardReply, ShardRequest
from tests.unit.grids.flower_apps import answering

PARAMETERS = {"a": torch.zeros(2, 3)}
COHORT = np.arange(3, dtype=np.int64)


def good() -> RecordDict:
    values = {"a": torch.ones(2, 3, dtype=torch.float64)}
    return ShardReply(0, WeightedSum(values, 3.0, 3, 0, 9, 4.5, 1)).to_content()


def total_of(content: RecordDict) -> WeightedSum:
    executor = GridExecutor(answering(content), null_spec())
    return executor.clipped_sum(PARAMETERS, COHORT, FlatClip(l2_clip_norm=1.0), 7)


def counts(**changes: Any) -> Callable[[RecordDict], None]:  # noqa: ANN401
    def change(content: RecordDict) -> None:
        told = {**content.metric_records["counts"], **changes}
        kept = {name: value for name, value in told.items() if value is not None}
        content["counts"] = MetricRecord(kept)

    return change


def values(array: Array) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        content["sum"] = ArrayRecord({"a": array})

    return change


def without(name: str) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        del content[name]

    return change


BAD: dict[str, Callable[[RecordDict], None]] = {
    "no counts": without("counts"),
    "no sum": without("sum"),
    "no loss": counts(loss=None),
    "loss": counts(loss=float("nan")),
    "list": counts(num_units=[3]),
    "part": counts(num_gradients=2.5),
    "gradients": counts(num_gradients=-1),
    "non-finite": counts(num_non_finite=4),
    "weight": counts(weight=3.5),
    "negative weight": counts(weight=-0.1),
    "no weight": counts(weight=float("nan")),
    "float64": values(Array(np.ones((2, 3), np.float64))),
    "text": values(Array(np.full((2, 3), b"x"))),
    "shape": values(Array(np.ones((3, 2), np.float32))),
    "NaN": values(Array(np.full((2, 3), np.float32(np.nan)))),
    "infinite": values(Array(np.full((2, 3), np.float32(-np.inf)))),
    "cut": values(Array("float32", (2, 3), "numpy.ndarray", b"\x93NUMPY")),
    "pickle": values(Array("object", (1,), "numpy.ndarray", b"\x80\x04N.")),
    "kind": values(Array("float32", (2, 3), "pickle", b"")),
}


@pytest.mark.parametrize("how", BAD)
def test_a_bad_reply_fails_the_round(how: str) -> None:
    content = good()
    assert total_of(content).num_units == 3
    BAD[how](content)
    with pytest.raises(RuntimeError, match="round 7: "):
        total_of(content)


def test_a_bad_request_is_one_error() -> None:
    record = ArrayRecord({"a": Array(np.zeros((2, 3), np.float32))})
    request = ShardRequest("{}", "{}", 7, 0, COHORT, record)
    assert ShardRequest.from_content(request.to_content()).round == 7
    for part in ("request", "units", "parameters"):
        content = request.to_content()
        del content[part]
        with pytest.raises(ValueError, match="a request: "):
            ShardRequest.from_content(content)
    content = request.to_content()
    content["units"] = ArrayRecord({"keys": Array(np.zeros(3))})
    with pytest.raises(ValueError, match="a request: keys are float64"):
        ShardRequest.from_content(content)

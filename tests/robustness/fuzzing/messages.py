"""Hostile messages: replies that a server folds, and requests that a client answers."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsim.clipping import FlatClip
from fedsim.config import Config
from fedsim.grids.executor import GridExecutor
from fedsim.grids.records import ClientSpec, ShardRequest
from fedsim.plan import TaskSpec
from fedsim.tensors import all_finite
from tests.robustness.fuzzing.mutations import Dice, changed_bytes, changed_tree, odd_value, pick
from tests.robustness.fuzzing.target import Target, believe
from tests.unit.grids.flower_apps import answering

_FILE = "message.json"
_PARAMETERS = {"a": torch.zeros(2, 3), "b": torch.zeros(4)}
_COHORT = np.arange(3, dtype=np.int64)


def _array(values: np.ndarray[Any, Any], *, pickled: bool = False) -> dict[str, Any]:
    buffer = io.BytesIO()
    np.save(buffer, values.astype(object) if pickled else values, allow_pickle=pickled)
    return {
        "dtype": str(values.dtype),
        "shape": list(values.shape),
        "stype": "numpy.ndarray",
        "data": buffer.getvalue().hex(),
    }


def _full(like: torch.Tensor, value: float, kind: str) -> np.ndarray[Any, Any]:
    with np.errstate(invalid="ignore", over="ignore"):  # a NaN as an integer
        return np.full(like.shape, value).astype(kind)


def _write_reply(valid: Path, place: Path, dice: Dice) -> None:
    counts = {
        "shard": 0,
        "weight": 3.0,
        "num_units": 3,
        "num_non_finite": 0,
        "num_gradients": 9,
        "loss": 4.5,
        "num_unclipped": 1,
    }
    odd = float(pick(dice, [0.0, 1.0, np.nan, np.inf, -np.inf, 1e300]))
    kind = pick(dice, ["f8", "f8", "f8", "f4", "i8", "?", "c16", "S3"])
    arrays = {
        name: _array(_full(value, odd, kind), pickled=dice.random() < 0.1)
        for name, value in _PARAMETERS.items()
    }
    message = {"counts": counts, "sum": arrays}
    if dice.random() < 0.7:
        part = pick(dice, ["counts", "sum", "both"])
        if part == "both":
            message = changed_tree(dice, message)
        else:
            message[part] = changed_tree(dice, message[part])
    elif dice.random() < 0.5:
        one = arrays["a"]
        one["data"] = changed_bytes(dice, bytes.fromhex(one["data"])).hex()
    (place / _FILE).write_text(json.dumps(message), encoding="utf-8")


def _parsed(told: dict[str, Any]) -> Array:
    data = bytes.fromhex(told["data"])
    return Array(told["dtype"], tuple(told["shape"]), told["stype"], data)


def _record(place: Path) -> RecordDict | None:
    """Return the message, or None where Flower itself lets nobody make it."""
    told = json.loads((place / _FILE).read_text(encoding="utf-8"))
    try:
        record = RecordDict()
        for name, part in told.items():
            if name in ("sum", "units", "parameters"):
                record[name] = ArrayRecord({key: _parsed(array) for key, array in part.items()})
            elif name == "request":
                record[name] = ConfigRecord(part)
            else:
                record[name] = MetricRecord(part)
    except Exception:
        return None
    return record


def _spec() -> ClientSpec:
    config = Config()
    task = TaskSpec(name="fedsgd", options={"group_size": 3, "selection": "random"})
    return ClientSpec(
        seed=0, data=config.data, model=config.model, task=task, engine="loop", device="cpu"
    )


def _read_reply(place: Path) -> None:
    if (content := _record(place)) is None:
        return
    executor = GridExecutor(answering(content), _spec())
    total = executor.clipped_sum(_PARAMETERS, _COHORT, FlatClip(l2_clip_norm=1.0), 0)
    believe(all_finite(total.values), "a sum that is not finite")
    believe({value.dtype for value in total.values.values()} == {torch.float64}, "not float64")
    believe(0.0 <= total.weight <= 3.0, f"a weight of {total.weight}")
    believe(total.num_units == 3, f"{total.num_units} units")
    believe(0 <= total.num_non_finite <= 3, f"{total.num_non_finite} not finite")
    believe(total.num_gradients >= 0, f"{total.num_gradients} gradients")


def _write_request(valid: Path, place: Path, dice: Dice) -> None:
    spec = _spec().model_dump(mode="json")
    clip = FlatClip(l2_clip_norm=1.0).model_dump(mode="json")
    head = {"spec": json.dumps(spec), "clip": json.dumps(clip), "round": 0, "shard": 0}
    kind = pick(dice, ["i8", "i8", "f8", "?", "S2", "u8"])
    message: dict[str, Any] = {
        "request": head,
        "units": {"keys": _array(np.arange(3).astype(kind), pickled=dice.random() < 0.1)},
        "parameters": {"a": _array(np.zeros((2, 3), "f4"))},
    }
    part = pick(dice, list(message))
    how = dice.random()
    if how < 0.3:
        message["request"]["spec"] = json.dumps(changed_tree(dice, spec))
    elif how < 0.4:
        message["request"]["clip"] = json.dumps(odd_value(dice))
    else:
        message[part] = changed_tree(dice, message[part])
    (place / _FILE).write_text(json.dumps(message), encoding="utf-8")


def _read_request(place: Path) -> None:
    if (content := _record(place)) is None:
        return
    request = ShardRequest.from_content(content)
    believe(request.keys.dtype == np.int64 and request.keys.ndim == 1, "keys that are none")
    believe(request.round >= 0 and request.shard >= 0, "a round before the first")


TARGETS = (
    Target("reply", _write_reply, _read_reply, refusals=(RuntimeError,)),
    Target("request", _write_request, _read_request, refusals=(ValueError,)),
)

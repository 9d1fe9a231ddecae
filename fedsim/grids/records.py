"""The two messages of a round, and conversion of tensors to Flower's records without copies.

A `ShardRequest` goes out, a `ShardReply` with one weighted sum comes back.
"""

from __future__ import annotations

import io
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from pydantic import BaseModel, ConfigDict

from fedsim.config import ModelConfig, Precision
from fedsim.data.config import DataConfig
from fedsim.estimators import WeightedSum
from fedsim.execution import Keys, TaskSpec
from fedsim.grids.member import this_member
from fedsim.tensors import Tensors

_COUNTS: dict[str, Callable[[Any], float]] = {  # fields of a `WeightedSum`
    "weight": float,
    "loss": float,
    "num_units": int,
    "num_non_finite": int,
    "num_gradients": int,
    "num_unclipped": int,
}
_ALIGNMENT = 64  # bytes, the alignment of torch's own memory on a CPU


class ClientSpec(BaseModel):
    """A run's settings for its clients: the same JSON in every message.

    Parameters and clip change from round to round, so they are sent separately.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int
    data: DataConfig
    model: ModelConfig
    task: TaskSpec
    engine: str
    device: str
    precision: Precision = "float32"
    checkpointing: bool = False
    gpu_share: float = 1.0  # a worker's share of a GPU's memory
    folder: str = ""  # the server's; relative paths of the config start there
    data_seed: int | None = None  # see `load_materials`
    text_digest: str | None = None  # of the server's `Materials`; None: not compared
    start_digest: str | None = (
        None  # not compared: a model with another start has another spec, and is loaded again
    )
    frozen_digest: str | None = None  # of the server's `Materials`; None: not compared


@dataclass(frozen=True, eq=False)
class ShardRequest:
    """Asks for Σ w·clip(update) over `keys` at `parameters`.

    All shards of a round share the record `parameters`. If it is empty, the worker already has the
    parameters, and keeps the sum (`member.py`). `spec` and `clip` are the JSON of a `ClientSpec`
    and of a clip.
    """

    spec: str
    clip: str
    round: int
    shard: int
    keys: Keys
    parameters: ArrayRecord

    def to_content(self) -> RecordDict:
        """Return the message's content."""
        keys = ArrayRecord()
        keys["keys"] = to_record({"keys": torch.from_numpy(self.keys)})["keys"]
        head = ConfigRecord(
            {"spec": self.spec, "clip": self.clip, "round": self.round, "shard": self.shard}
        )
        return RecordDict({"request": head, "units": keys, "parameters": self.parameters})

    def reply(self, total: WeightedSum) -> ShardReply:
        """Return the reply; the sum stays on this worker if `parameters` is empty."""
        total = total if len(self.parameters) else this_member().keep(total)
        return ShardReply(self.round, self.shard, total)

    @classmethod
    def from_content(cls, content: RecordDict) -> ShardRequest:
        """Read a message's content.

        Raises:
            ValueError: a part is missing or cannot be read.
        """
        with _readable("request"):
            head: Any = content["request"]
            units: Any = content["units"]
            parameters: Any = content["parameters"]
            numbers = int(head["round"]), int(head["shard"])
            keys = units["keys"].numpy()
            return cls(str(head["spec"]), str(head["clip"]), *numbers, keys, parameters)


@dataclass(frozen=True, eq=False)
class ShardReply:
    """The weighted sum of one shard.

    It is sent as float32, half of the bytes of the float64 sum.

    Attributes:
        round: round of the request.
        shard: number of the shard.
        total: the sum.
    """

    round: int
    shard: int
    total: WeightedSum

    def to_content(self) -> RecordDict:
        """Return the reply's content."""
        counts = {name: getattr(self.total, name) for name in _COUNTS}
        head = MetricRecord({"round": self.round, "shard": self.shard, **counts})
        rounded = {name: value.float() for name, value in self.total.values.items()}
        return RecordDict({"counts": head, "sum": to_record(rounded)})

    @classmethod
    def from_content(cls, content: RecordDict) -> ShardReply:
        """Read a reply's content; the sum's tensors may be read-only.

        Raises:
            ValueError: a part is missing or cannot be read.
        """
        with _readable("reply"):
            head: Any = content["counts"]
            counts = {name: kind(head[name]) for name, kind in _COUNTS.items()}
            total = WeightedSum(values=views_of(content["sum"]), **counts)  # type: ignore[arg-type]
            return cls(int(head["round"]), int(head["shard"]), total)


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """Turn any error in the block, also Flower's own, into a `ValueError`.

    Read parts by `content[name]`. The dictionary of `content.array_records` refers to itself, and
    so keeps parameters and sums in memory until the next garbage collection.
    """
    try:
        yield
    except Exception as error:
        message = f"a {what} that is not this fedsim's: {type(error).__name__}: {error}"
        raise ValueError(message) from error


class LiveArray(Array):
    """An `Array` that keeps its ndarray and serialises it only when `data` is read.

    Its class name is `Array`, which Flower sends as the type, so receivers see no difference. The
    ndarray is read-only, like arrays from Ray, so that writing fails on every grid.
    """

    def __init__(self, ndarray: npt.NDArray[np.generic]) -> None:
        view = ndarray.view()
        view.flags.writeable = False
        self.__dict__.update(
            _view=view, dtype=str(view.dtype), shape=tuple(view.shape), stype="numpy.ndarray"
        )

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """The bytes that Flower would send: `numpy.save`'s."""
        buffer = io.BytesIO()
        np.save(buffer, self.__dict__["_view"], allow_pickle=False)
        return buffer.getvalue()

    def numpy(self) -> npt.NDArray[np.generic]:
        """Return the array itself, read-only."""
        view: npt.NDArray[np.generic] = self.__dict__["_view"]
        return view

    def __reduce__(self) -> tuple[Any, tuple[npt.NDArray[np.generic]]]:
        """Pickle the ndarray, which processes of one machine exchange without a copy."""
        return _live, (self.__dict__["_view"],)


def _live(ndarray: npt.NDArray[np.generic]) -> LiveArray:
    return LiveArray(ndarray)


LiveArray.__name__ = LiveArray.__qualname__ = "Array"


def to_record(tensors: Tensors) -> ArrayRecord:
    """Return a record of tensors by name; tensors on a GPU are copied to the CPU."""
    record = ArrayRecord()
    for name, value in _on_cpu(tensors).items():
        # One by one: ArrayRecord({...}) would serialise every array again.
        record[name] = LiveArray(value.numpy())
    return record


def _on_cpu(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the tensors on the CPU; copy those of a GPU into pinned memory at the same time."""
    found = {}
    for name, value in tensors.items():
        found[name] = value.detach()
        if value.is_cuda:
            pinned = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            found[name] = pinned.copy_(value.detach(), non_blocking=True)
    for device in {value.device for value in tensors.values() if value.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return found


def from_record(record: ArrayRecord, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
    """Return the tensors of a record, copied to a device, since received arrays are read-only."""
    return {name: value.to(device, copy=True) for name, value in views_of(record).items()}


class ParametersOnDevice:
    """The parameters of a round, moved to a device once for all shards of a worker.

    On the CPU they share memory with the record: with the server in one process, or with all
    workers of a machine under Ray. Do not write into them.

    Grids pass the same record to all shards of a round. Another record is loaded again. The tensors
    are dropped together with the record, at the end of the round.
    """

    def __init__(self) -> None:
        self._record: weakref.ref[ArrayRecord] | None = None
        self._device = torch.device("cpu")
        self._tensors: dict[str, torch.Tensor] = {}

    def __call__(self, record: ArrayRecord, device: torch.device) -> Tensors:
        """Return the record's tensors on `device`; do not write into them."""
        if not len(record):
            return this_member().parameters
        known = None if self._record is None else self._record()
        if record is not known or device != self._device:
            self._tensors = {}  # dropped before the next tensors are loaded
            self._tensors = loaded(record, device)
            self._record, self._device = weakref.ref(record, self._drop), device
        return self._tensors

    def _drop(self, record: weakref.ref[ArrayRecord]) -> None:
        if record is self._record:
            self._tensors = {}


def loaded(record: ArrayRecord, device: torch.device) -> dict[str, torch.Tensor]:
    """Return the tensors of a record on a device; do not write into them.

    Memory that is aligned differently from torch's own is copied: rounding depends on alignment.
    """
    if device.type != "cpu":
        return from_record(record, device)
    return {
        name: value.clone() if value.data_ptr() % _ALIGNMENT else value
        for name, value in views_of(record).items()
    }


def views_of(record: ArrayRecord) -> dict[str, torch.Tensor]:
    """Return the tensors of a record without a copy, for reading them once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return {name: torch.from_numpy(array.numpy()) for name, array in record.items()}

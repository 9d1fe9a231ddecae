"""The two messages of a round, and tensors in Flower's records without needless copies.

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

_COUNTS: dict[str, Callable[[Any], float]] = {  # of a `WeightedSum`
    "weight": float,
    "loss": float,
    "num_units": int,
    "num_non_finite": int,
    "num_gradients": int,
    "num_unclipped": int,
}
_ALIGNMENT = 64  # bytes, of torch's own memory on a CPU


class ClientSpec(BaseModel):
    """A run's settings for its clients: the same JSON in every message.

    Parameters and clip, which change from round to round, are sent beside it.
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
    gpu_share: float = 1.0  # what a worker may take of a GPU's memory
    folder: str = ""  # the server's, where relative paths of the config begin
    data_seed: int | None = None  # as `load_materials` takes it
    text_digest: str | None = None  # of the server's `Materials`; None: not compared
    start_digest: str | None = None  # not compared: another start is another spec, loaded anew
    frozen_digest: str | None = None  # of the server's `Materials`; None: not compared


@dataclass(frozen=True, eq=False)
class ShardRequest:
    """Compute Σ w·clip(update) over `keys` at `parameters`, a record that shards share.

    If it is empty, the worker has the parameters, and keeps the sum: `member.py`.

    `spec` and `clip` are JSON, of a `ClientSpec` and of a clip.
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
        """Return the reply; the sum stays in this worker if the parameters were here already."""
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

    It travels as float32, half of the bytes of the float64 sum.

    Attributes:
        round: of the request.
        shard: its number.
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
    """Turn any error in the block, also Flower's own kinds, into a ValueError.

    Parts are read by `content[name]`: `content.array_records` makes a dictionary that refers to
    itself, which keeps parameters and sums until the next garbage collection.
    """
    try:
        yield
    except Exception as error:
        message = f"a {what} that is not this fedsim's: {type(error).__name__}: {error}"
        raise ValueError(message) from error


class LiveArray(Array):
    """An `Array` that keeps its ndarray and serialises it only when `data` is read.

    Its class name is `Array`, which Flower sends as the type: on the wire the two are equal. The
    ndarray is read-only, as arrays from Ray are, so that writing fails on every grid.
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
        """Pickle the ndarray, which between processes of one machine travels without a copy."""
        return _live, (self.__dict__["_view"],)


def _live(ndarray: npt.NDArray[np.generic]) -> LiveArray:
    return LiveArray(ndarray)


LiveArray.__name__ = LiveArray.__qualname__ = "Array"


def to_record(tensors: Tensors) -> ArrayRecord:
    """Put tensors (copied to the CPU where they are not there) into a record, by name."""
    record = ArrayRecord()
    for name, value in _on_cpu(tensors).items():
        # Item by item: ArrayRecord({...}) would serialise every array again.
        record[name] = LiveArray(value.numpy())
    return record


def _on_cpu(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the tensors, those of a GPU copied into pinned memory, all at once."""
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
    """Return the tensors of a record, copied to a device: the wire's arrays may be read-only."""
    return {name: value.to(device, copy=True) for name, value in views_of(record).items()}


class ParametersOnDevice:
    """The parameters of a round, moved to a device once for all of a worker's shards.

    On the CPU they are the record's own memory (the server's in one process, shared by all workers
    of a machine under Ray) and must not be written into.

    Grids pass the same record to all shards of a round; another record is loaded again. The tensors
    are dropped when the record is, at the end of the round.
    """

    def __init__(self) -> None:
        self._record: weakref.ref[ArrayRecord] | None = None
        self._device = torch.device("cpu")
        self._tensors: dict[str, torch.Tensor] = {}

    def __call__(self, record: ArrayRecord, device: torch.device) -> Tensors:
        """Return the record's tensors on `device`, to be read and not written into."""
        if not len(record):
            return this_member().parameters
        known = None if self._record is None else self._record()
        if record is not known or device != self._device:
            self._tensors = {}  # before the next ones are there
            self._tensors = loaded(record, device)
            self._record, self._device = weakref.ref(record, self._drop), device
        return self._tensors

    def _drop(self, record: weakref.ref[ArrayRecord]) -> None:
        if record is self._record:
            self._tensors = {}


def loaded(record: ArrayRecord, device: torch.device) -> dict[str, torch.Tensor]:
    """Return the tensors of a record on a device, not to be written into.

    Memory that is not aligned as torch's own is copied: kernels round by alignment.
    """
    if device.type != "cpu":
        return from_record(record, device)
    return {
        name: value.clone() if value.data_ptr() % _ALIGNMENT else value
        for name, value in views_of(record).items()
    }


def views_of(record: ArrayRecord) -> dict[str, torch.Tensor]:
    """Return the tensors of a record, not copied: for reading them once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return {name: torch.from_numpy(array.numpy()) for name, array in record.items()}

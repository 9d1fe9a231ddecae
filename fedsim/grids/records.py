"""The two messages of a round, and tensors in Flower's records without needless copies.

A `ShardRequest` goes out, a `ShardReply` with one weighted sum comes back.
"""

from __future__ import annotations

import io
import math
import warnings
import weakref
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from pydantic import BaseModel, ConfigDict

from fedsim.config import ModelConfig, Precision
from fedsim.data.config import DataConfig
from fedsim.estimators import WeightedSum
from fedsim.execution import Keys, TaskSpec
from fedsim.materials import loader_name
from fedsim.registry import distributions
from fedsim.tensors import Tensors
from fedsim.utils.json_text import is_count

Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)

_COUNTS = (
    "shard",
    "num_units",
    "num_non_finite",
    "num_gradients",
    "num_unclipped",
)
_ALIGNMENT = 64  # bytes, of torch's own memory on a CPU


class ClientSpec(BaseModel):
    """What a client must know of a run: the same JSON in every one of its messages.

    What changes from round to round (the parameters, the clip) stands beside it.
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
    data_seed: int | None = None  # as `load_materials` takes it
    text_digest: str | None = None  # of the server's `Materials`; None: not compared
    start_digest: str | None = None  # not compared: another start is another spec, loaded anew
    frozen_digest: str | None = None  # of the server's `Materials`; None: not compared
    packages: dict[str, str] | None = None  # of `packages_behind`; None: not compared


def packages_behind(task: TaskSpec, model: ModelConfig) -> dict[str, str]:
    """Return the packages that a client computes with: of its task, and of its model's loader.

    With versions, and of a plug-in a digest of its files. Server and workers compare it: a worker
    that is started anew imports what the files have become.
    """
    return distributions({"tasks": task.name, "models": loader_name(model.name_or_path)})


@dataclass(frozen=True, eq=False)
class ShardRequest:
    """Compute Σ w·clip(update) over `keys` at `parameters`, a record that shards share.

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

    @classmethod
    def from_content(cls, content: RecordDict) -> ShardRequest:
        """Read a message's content.

        Raises:
            ValueError: a part is missing, or is not what `to_content` writes.
        """
        try:
            head = _part(content, "request", ConfigRecord)
            keys = _part(content, "units", ArrayRecord)["keys"].numpy()
            parameters = _part(content, "parameters", ArrayRecord)
            texts, numbers = [head["spec"], head["clip"]], [head["round"], head["shard"]]
        except Exception as error:  # Flower has errors of its own kinds for what it cannot open
            raise ValueError(f"a request: {type(error).__name__}: {error}") from error
        if not all(isinstance(text, str) for text in texts) or not all(map(is_count, numbers)):
            raise ValueError("a request: spec and clip are not texts, or round and shard no counts")
        if keys.dtype != np.int64 or keys.ndim != 1:
            raise ValueError(f"a request: keys are {keys.dtype} of shape {keys.shape}")
        return cls(str(texts[0]), str(texts[1]), int(numbers[0]), int(numbers[1]), keys, parameters)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class ShardReply:
    """The weighted sum of one shard, under the shard's number.

    It travels as float32, half of what was summed; the tolerance of `fedsim.noise` covers that.

    Attributes:
        shard: its number.
        total: the sum.
    """

    shard: int
    total: WeightedSum

    def to_content(self) -> RecordDict:
        """Return the reply's content."""
        total = self.total
        counts = MetricRecord(
            {
                "shard": self.shard,
                "weight": total.weight,
                "num_units": total.num_units,
                "num_non_finite": total.num_non_finite,
                "num_gradients": total.num_gradients,
                "loss": total.loss,
                "num_unclipped": total.num_unclipped,
            }
        )
        rounded = {name: value.float() for name, value in total.values.items()}
        return RecordDict({"counts": counts, "sum": to_record(rounded)})

    @classmethod
    def from_content(cls, content: RecordDict) -> ShardReply:
        """Read a reply's content; the sum's tensors may be read-only.

        Raises:
            ValueError: a part is missing, or is not what `to_content` writes.
        """
        try:
            counts = _part(content, "counts", MetricRecord)
            arrays = _part(content, "sum", ArrayRecord)
            values, loss = views_of(arrays), float(counts["loss"])  # type: ignore[arg-type]
            whole = {name: counts[name] for name in _COUNTS}
            weight = float(counts["weight"])  # type: ignore[arg-type]
        except Exception as error:  # Flower has errors of its own kinds for what it cannot open
            raise ValueError(
                f"{type(error).__name__}: {error} (it must be what this fedsim's ShardReply writes)"
            ) from error
        if any(value.dtype != torch.float32 for value in values.values()):
            raise ValueError("a sum that is not float32")
        if not all(is_count(count) for count in whole.values()) or not math.isfinite(loss):
            raise ValueError(f"counts that are none: {dict(counts)!r}")
        numbers = {name: int(count) for name, count in whole.items()}  # type: ignore[arg-type]
        shard = numbers.pop("shard")
        total = WeightedSum(values=values, weight=weight, loss=loss, **numbers)
        return cls(shard, total)


def _part(content: RecordDict, name: str, kind: type[Record]) -> Record:
    """Return a part of a message; `TypeError` if it is of another kind.

    `content.array_records` makes a dictionary that refers to itself, with all parts in it: the
    parameters and sums of rounds that are over would stay until the next garbage collection.
    """
    record = content[name]
    if not isinstance(record, kind):
        raise TypeError(f"{name} is no {kind.__name__}")
    return record


class LiveArray(Array):
    """An `Array` that keeps its ndarray and serialises it only when `data` is read.

    Flower names a record's parts by class name when it sends them, so this one goes by `Array`:
    on the wire the two cannot be told apart. The ndarray is read-only, as arrays that come out
    of Ray are: a task that writes into its input fails on every grid, not only on some.
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

    On the CPU they are the record's own memory, which is the server's in one process and all
    workers' of a machine under Ray; a model is not copied for each. Only where that memory is not
    aligned as torch aligns its own is it copied: kernels round by it.

    Grids hand the same record to all shards of a round; another record is loaded again. They are
    dropped when nobody has the record any more, as when the round is over.
    """

    def __init__(self) -> None:
        self._record: weakref.ref[ArrayRecord] | None = None
        self._device = torch.device("cpu")
        self._tensors: dict[str, torch.Tensor] = {}
        self._sums: list[int] = []

    def __call__(self, record: ArrayRecord, device: torch.device) -> Tensors:
        """Return the record's tensors on `device`, to be read and not written into."""
        known = None if self._record is None else self._record()
        if record is not known or device != self._device:
            self._tensors = {}  # before the next ones are there
            self._tensors = loaded(record, device)
            self._record, self._device = weakref.ref(record, self._drop), device
            self._sums = _sums_of_bits(self._tensors)
        return self._tensors

    def check(self) -> None:
        """Raise `RuntimeError` if they were written into: whoever reads them next would be wrong.

        Called after every shard: what one task wrote would be in the gradients of the others, and
        without noise in the server's parameters.
        """
        if self._sums != _sums_of_bits(self._tensors):
            raise RuntimeError(
                "a task wrote into the parameters that it was given, which may be the server's; "
                "let it copy them, and go on from a checkpoint"
            )

    def _drop(self, record: weakref.ref[ArrayRecord]) -> None:
        if record is self._record:
            self._tensors, self._sums = {}, []


def loaded(record: ArrayRecord, device: torch.device) -> dict[str, torch.Tensor]:
    """Return the tensors of a record on a device, not to be written into."""
    if device.type != "cpu":
        return from_record(record, device)
    return {
        name: value.clone() if value.data_ptr() % _ALIGNMENT else value
        for name, value in views_of(record).items()
    }


def _sums_of_bits(tensors: Tensors) -> list[int]:
    """Return the sum of each tensor's bits, by eight bytes, which a write changes."""
    sums = []
    for value in tensors.values():
        data = value.reshape(-1).view(torch.uint8)
        whole = data.numel() // 8 * 8
        sums.append(data[:whole].view(torch.int64).sum())
        if whole < data.numel():
            sums.append(data[whole:].sum())
    found: list[int] = torch.stack(sums).tolist() if sums else []  # a GPU is waited for once
    return found


def views_of(record: ArrayRecord) -> dict[str, torch.Tensor]:
    """Return the tensors of a record, not copied: for reading them once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return {name: torch.from_numpy(array.numpy()) for name, array in record.items()}

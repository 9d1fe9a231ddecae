"""Tensors in Flower's records without a copy where nobody needs the bytes."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord

from fedsim.tensors import Tensors


class LiveArray(Array):
    """An `Array` that keeps its ndarray and serialises it only when somebody asks for `data`.

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
    for name, value in tensors.items():
        # Item by item: ArrayRecord({...}) would serialise every array again.
        record[name] = LiveArray(value.detach().cpu().numpy())
    return record


def from_record(record: ArrayRecord) -> dict[str, torch.Tensor]:
    """Return the tensors of a record, copied: the wire's arrays may be read-only."""
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}


class ParametersOnDevice:
    """The parameters of a round, moved to a device once for all of a worker's shards.

    Grids hand the same record to all shards of a round; another record is loaded anew.
    """

    def __init__(self) -> None:
        self._record: ArrayRecord | None = None
        self._device = torch.device("cpu")
        self._tensors: dict[str, torch.Tensor] = {}
        self._versions: list[int] = []

    def __call__(self, record: ArrayRecord, device: torch.device) -> Tensors:
        """Return the record's tensors on `device`, to be read and not written into.

        Raises:
            RuntimeError: somebody wrote into them after an earlier call.
        """
        if record is not self._record or device != self._device:
            self._tensors = {k: v.to(device) for k, v in from_record(record).items()}
            self._record, self._device = record, device
            self._versions = [value._version for value in self._tensors.values()]
        elif self._versions != [value._version for value in self._tensors.values()]:
            raise RuntimeError("a task wrote into the parameters that it was given; copy them")
        return self._tensors


def views_of(record: ArrayRecord) -> dict[str, torch.Tensor]:
    """Return the tensors of a record, not copied: for whoever only reads them, once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return {name: torch.from_numpy(array.numpy()) for name, array in record.items()}

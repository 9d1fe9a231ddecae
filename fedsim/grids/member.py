"""A worker's part where sums and parameters go from worker to worker, by torch.distributed.

A round has three phases, which the server begins on all workers at once: *compute*, in which sums
stay here; *noise*, in which each worker gets the sum of its share of the parameters; *step*, after
which each has all parameters. What a worker replies with outlives it in Ray's store.
"""

from __future__ import annotations

import math
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any

import numpy.typing as npt
import torch
from torch import distributed

from fedsim.estimators import WeightedSum
from fedsim.grids.shares import Shares
from fedsim.release import Step, Trained
from fedsim.seeding import NoiseKey
from fedsim.tensors import Tensors, all_finite, l2_norm

Stored = Mapping[str, npt.NDArray[Any]]
"""Tensors of a share, as Ray stores them."""

_PIECE = 2**20  # entries that a worker sends to another at once: 4 MiB
_TIMEOUT = timedelta(minutes=10)  # of one exchange, which all workers begin together


class NotJoinedError(RuntimeError):
    """A worker that was started again is in no group yet."""


class Member:
    """One worker of a group.

    Attributes:
        fetch: reads what is stored.
        host: this machine's address, for the others.
        parameters: all, on the device that computes gradients.
    """

    def __init__(self) -> None:
        self.fetch: Callable[[Sequence[Any]], Sequence[Stored]] = list
        self.host = "127.0.0.1"
        self.parameters: dict[str, torch.Tensor] = {}
        self._joined = False
        self._version = ""  # of the parameters; "" while they are written
        self._moments: tuple[Tensors, Tensors] | None = None  # optimizer state, average: the share
        self._sum: dict[str, torch.Tensor] = {}

    def meeting(self) -> tuple[str, int]:
        """Return where a group can meet: this machine, and a port that is free now."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return self.host, int(probe.getsockname()[1])

    def join(self, meeting: tuple[str, int], rank: int, shares: Shares, backend: str) -> None:
        """Form a group with the other workers, in place of the last."""
        if distributed.is_initialized():
            with suppress(RuntimeError):  # one that lost a worker
                distributed.destroy_process_group()
        host, port = meeting
        distributed.init_process_group(
            backend, f"tcp://{host}:{port}", _TIMEOUT, world_size=shares.count, rank=rank
        )
        self._rank, self._shares, self._version, self._joined = rank, shares, "", True
        self._device = torch.device("cuda" if backend == "nccl" else "cpu")  # of the share

    def begin(self, version: str, device: str, parameters: Sequence[Any]) -> None:
        """Make ready for a round: read the stored parameters, unless this version is here.

        Raises:
            NotJoinedError: this worker died between two rounds and was started again.
        """
        if not self._joined:
            raise NotJoinedError("a worker died between two rounds")
        self._sum = {}
        if version != self._version:
            self._version, self._moments = "", None
            parts = [tensors_of(part) for part in self.fetch([*parameters])]
            whole = self._shares.join(parts)
            self.parameters = {name: value.to(device, copy=True) for name, value in whole.items()}
            self._version = version

    def keep(self, total: WeightedSum) -> WeightedSum:
        """Add a shard's sum to this worker's, in its memory; return its counts.

        Raises:
            RuntimeError: the sum is not finite.
        """
        if not math.isfinite(norm := l2_norm(total.values)):
            raise RuntimeError(f"the sum of a shard has norm {norm}; it must be finite")
        for name, value in total.values.items():
            before = self._sum.get(name)
            self._sum[name] = value.double() if before is None else before.add_(value)
        return replace(total, values={})

    def noise(self, factor: float, stddev: float, key: NoiseKey) -> tuple[float, float]:
        """Release this worker's share of the sum over all workers.

        Returns:
            The norms of the share, without the noise and with it.
        """
        shares, rank = self._shares, self._rank
        total = torch.zeros(shares.size(rank), dtype=torch.float64, device=self._device)

        def fill(of: int, low: int, room: torch.Tensor) -> None:
            for span in shares.pieces(of, low, low + len(room)):
                part = room[span.at : span.at + span.stop - span.start]
                value = self._sum.get(span.name)
                if value is None:  # no shard was this worker's
                    part.zero_()
                else:
                    part.copy_(value.view(-1)[span.start : span.stop])

        sizes = [shares.size(each) for each in range(shares.count)]
        wide = torch.empty(_PIECE, dtype=torch.float64, device=self._device)
        for low, received in self._exchanged(fill, sizes, [sizes[rank]] * shares.count):
            for part in received:  # in order of the workers: the bits do not depend on timing
                # Widened first: torch has no vector instructions for a sum of two widths.
                total[low : low + len(part)].add_(wide[: len(part)].copy_(part))
        self._sum = {}
        noise = replace(key, first=shares.first_chunks(rank))
        self._release = WeightedSum(shares.views(total, rank)).release_(factor, stddev, noise)
        return self._release.estimate_norm, self._release.norm

    def step(
        self, version: str, step: Step, state: Sequence[Any], average: Sequence[Any]
    ) -> tuple[tuple[bool, list[str], list[str]], Stored, Stored, Stored]:
        """Step this worker's share, and get the parameters of all.

        Args:
            version: of the parameters after it.
            step: of the server's optimizer.
            state: the one place where the share of the optimizer's state is stored.
            average: the one place where the share of the average is stored.

        Returns:
            Whether the share's parameters are finite, and the names in state and average; then
            the share's parameters, state and average.
        """
        self._version = ""
        shares, rank = self._shares, self._rank
        if self._moments is None:
            optimizer_state, mean = (
                {name: value.to(self._device, copy=True) for name, value in part.items()}
                for part in map(tensors_of, self.fetch([*state, *average]))
            )
            self._moments = optimizer_state, mean
        own = shares.cut(self.parameters, rank)
        before = {name: value.to(self._device) for name, value in own.items()}
        parameters, *moments = self._release.stepped(
            step, Trained(before, *self._moments), keep=False
        )
        del self._release
        flat = torch.cat([value.view(-1) for value in parameters.values()] or [torch.zeros(0)])

        def fill(of: int, low: int, room: torch.Tensor) -> None:
            room.copy_(flat[low : low + len(room)])

        sizes = [shares.size(each) for each in range(shares.count)]
        for low, received in self._exchanged(fill, [sizes[rank]] * shares.count, sizes):
            for of, room in enumerate(received):
                for span in shares.pieces(of, low, low + len(room)):
                    part = self.parameters[span.name].view(-1)[span.start : span.stop]
                    part.copy_(room[span.at : span.at + len(part)])
        self._version, self._moments = version, (moments[0], moments[1])
        head = all_finite(parameters), [*moments[0]], [*moments[1]]
        return head, stored(parameters), stored(moments[0]), stored(moments[1])

    def _exchanged(
        self,
        fill: Callable[[int, int, torch.Tensor], None],
        sent: Sequence[int],
        received: Sequence[int],
    ) -> Iterator[tuple[int, tuple[torch.Tensor, ...]]]:
        """Send each worker entries of its own, in pieces; yield those of all, by their senders.

        gloo's reduce-scatter sends every entry twice as often, and its all-gather takes longer.

        Args:
            fill: writes the piece for a worker that begins with some entry.
            sent: how many entries each worker is to get.
            received: how many each one sends here.

        Yields:
            The first entry of a piece, and the piece of each worker.
        """
        rooms = torch.empty(2, len(sent) * _PIECE, device=self._device)
        for low in range(0, max(*sent, *received), _PIECE):
            out, into = (
                [min(_PIECE, max(0, size - low)) for size in sizes] for sizes in (sent, received)
            )
            given, taken = rooms[0, : sum(out)], rooms[1, : sum(into)]
            for of, part in enumerate(torch.split(given, out)):
                fill(of, low, part)
            distributed.all_to_all_single(taken, given, into, out)
            yield low, torch.split(taken, into)


@cache
def this_member() -> Member:
    """Return the member that this process is."""
    return Member()


def tensors_of(given: Stored) -> dict[str, torch.Tensor]:
    """Return what is stored as tensors, not copied and not to be written into."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return {name: torch.from_numpy(value) for name, value in given.items()}


def stored(tensors: Tensors) -> Stored:
    """Return tensors as they are stored."""
    return {name: value.detach().cpu().numpy() for name, value in tensors.items()}

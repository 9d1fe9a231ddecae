"""The workers' part of rounds in which they exchange sums and parameters by torch.distributed.

A round has three phases, which the server begins on all workers at once. In *compute*, sums stay on
the workers. In *noise*, each worker gets the sum of its share of the parameters. After *step*, each
worker has all parameters. Replies are in Ray's store, so they outlive the worker.
"""

from __future__ import annotations

import math
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from typing import Any

import numpy.typing as npt
import torch
from torch import distributed

from fedsim.estimators import WeightedSum
from fedsim.grids.shares import Shares
from fedsim.release import Step, Trained
from fedsim.seeding import NoiseKey
from fedsim.tensors import Tensors, all_finite, l2_norm, zeros_like

Stored = Mapping[str, npt.NDArray[Any]]
"""Tensors of a share, as Ray stores them."""

_PIECE = 2**20  # entries that a worker sends to another worker at once: 4 MiB
_TIMEOUT = timedelta(minutes=10)  # for one exchange, which all workers begin together


class NotJoinedError(RuntimeError):
    """The worker was restarted and has not joined a group yet."""


class Member:
    """One worker of a group.

    Attributes:
        fetch: reads stored shares.
        host: this machine's address, for the other workers.
        parameters: all parameters, on the device that computes gradients.
    """

    def __init__(self) -> None:
        self.fetch: Callable[[Sequence[Any]], Sequence[Stored]] = list
        self.host = "127.0.0.1"
        self.parameters: dict[str, torch.Tensor] = {}
        self._joined = False
        self._version = ""  # version of the parameters; "" while they are written
        self._moments: tuple[Tensors, Tensors] | None = (
            None  # this share of optimizer state and average
        )
        self._sum: dict[str, torch.Tensor] = {}

    def meeting(self) -> tuple[str, int]:
        """Return an address at which a group can meet: this machine and a free port."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return self.host, int(probe.getsockname()[1])

    def join(self, meeting: tuple[str, int], rank: int, shares: Shares, backend: str) -> None:
        """Form a group with the other workers; leave the earlier group."""
        if distributed.is_initialized():
            with suppress(RuntimeError):  # the group has lost a worker
                distributed.destroy_process_group()
        host, port = meeting
        distributed.init_process_group(
            backend, f"tcp://{host}:{port}", _TIMEOUT, world_size=shares.count, rank=rank
        )
        self._rank, self._shares, self._version, self._joined = rank, shares, "", True
        self._device = torch.device("cuda" if backend == "nccl" else "cpu")  # device of the share

    def begin(self, version: str, device: str, parameters: Sequence[Any]) -> None:
        """Prepare a round: read the stored parameters, unless this worker has that version.

        Raises:
            NotJoinedError: this worker died between two rounds and was restarted.
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
        """Add a shard's sum to this worker's sum; return the shard's counts.

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
        if not self._sum:  # this worker had no shard
            self._sum = zeros_like(self.parameters, torch.float64)
        own = torch.empty(shares.size(rank), device=self._device)  # float32, as what is received
        self._fill(self._sum, rank, 0, own)
        total = own.double()
        sizes = [shares.size(each) for each in range(shares.count)]
        wide = torch.empty(_PIECE, dtype=torch.float64, device=self._device)
        fill = partial(self._fill, self._sum)
        for low, received in self._exchanged(fill, sizes, [sizes[rank]] * shares.count):
            for part in received:  # in worker order, so that the bits do not depend on timing
                # Converted first: torch adds two different dtypes without vector instructions.
                total[low : low + len(part)].add_(wide[: len(part)].copy_(part))
        self._sum = {}
        noise = replace(key, first=shares.first_chunks(rank))
        self._release = WeightedSum(shares.views(total, rank)).release_(factor, stddev, noise)
        return self._release.estimate_norm, self._release.norm

    def step(
        self, version: str, step: Step, state: Sequence[Any], average: Sequence[Any]
    ) -> tuple[tuple[bool, list[str], list[str]], Stored, Stored, Stored]:
        """Step this worker's share; receive the other workers' parameters.

        Args:
            version: name of the parameters after the step.
            step: step of the server's optimizer.
            state: one reference, to the share of the optimizer's state.
            average: one reference, to the share of the average.

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
        for name, value in parameters.items():
            own[name].copy_(value)

        def fill(_: int, low: int, room: torch.Tensor) -> None:
            self._fill(self.parameters, rank, low, room)

        sizes = [shares.size(each) for each in range(shares.count)]
        for low, received in self._exchanged(fill, [sizes[rank]] * shares.count, sizes):
            for of, room in enumerate(received):
                for span in shares.pieces(of, low, low + len(room)):
                    part = self.parameters[span.name].view(-1)[span.start : span.stop]
                    part.copy_(room[span.at : span.at + len(part)])
        self._version, self._moments = version, (moments[0], moments[1])
        head = all_finite(parameters), [*moments[0]], [*moments[1]]
        return head, stored(parameters), stored(moments[0]), stored(moments[1])

    def _fill(self, tensors: Tensors, of: int, low: int, room: torch.Tensor) -> None:
        """Copy the entries of a share from `low` on, out of whole tensors."""
        for span in self._shares.pieces(of, low, low + len(room)):
            entries = tensors[span.name].view(-1)[span.start : span.stop]
            room[span.at : span.at + len(entries)].copy_(entries)

    def _exchanged(
        self,
        fill: Callable[[int, int, torch.Tensor], None],
        sent: Sequence[int],
        received: Sequence[int],
    ) -> Iterator[tuple[int, tuple[torch.Tensor, ...]]]:
        """Send entries to each other worker in pieces; yield the received ones, ordered by sender.

        gloo's reduce-scatter sends each entry twice as often, and its all-gather is slower.

        Args:
            fill: called with a worker, a first entry and a buffer; writes that piece.
            sent: number of entries for each worker.
            received: number of entries from each worker.

        Yields:
            The first entry of the pieces, and the piece from each worker; empty from this one.
        """
        rooms = torch.empty(2, len(sent) * _PIECE, device=self._device)
        for low in range(0, max(*sent, *received), _PIECE):
            out, into = (
                [
                    min(_PIECE, max(0, size - low)) if of != self._rank else 0
                    for of, size in enumerate(sizes)
                ]
                for sizes in (sent, received)
            )
            outgoing, incoming = rooms[0, : sum(out)], rooms[1, : sum(into)]
            for of, part in enumerate(torch.split(outgoing, out)):
                fill(of, low, part)
            distributed.all_to_all_single(incoming, outgoing, into, out)
            yield low, torch.split(incoming, into)


@cache
def this_member() -> Member:
    """Return the member of this process."""
    return Member()


def tensors_of(share: Stored) -> dict[str, torch.Tensor]:
    """Return read-only tensors that share memory with the stored arrays."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return {name: torch.from_numpy(value) for name, value in share.items()}


def stored(tensors: Tensors) -> Stored:
    """Return the tensors as arrays, as Ray stores them."""
    return {name: value.detach().cpu().numpy() for name, value in tensors.items()}

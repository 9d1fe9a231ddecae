"""The server's part of rounds in which workers exchange sums and parameters directly.

Flower's messages carry only shards, clip and counts. `member.py` has the workers' part.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import chain
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Message

from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.execution import Keys
from fedsim.grids.executor import GridExecutor
from fedsim.grids.identity import OneRunGrid
from fedsim.grids.member import stored, tensors_of
from fedsim.grids.ray_worker import Envelope
from fedsim.grids.records import ClientSpec
from fedsim.grids.shares import Shares
from fedsim.noise.memory import NoiseMemory
from fedsim.release import Release, Step, Trained
from fedsim.seeding import NoiseKey
from fedsim.tensors import Tensors

log = logging.getLogger("fedsim")

Result = TypeVar("Result")
Call = tuple[Any, ...]
"""Number of a worker, name of a method of `Worker`, and the method's arguments."""

_ATTEMPTS = 5  # of a round
_PATIENCE = 10.0  # seconds for workers to notice that another died during an exchange
_FIRST_NODE = 2


class WorkerLostError(RuntimeError):
    """A worker died, or was ended because it waited for a worker that had died."""


class Crew(Protocol):
    """Interface of the workers that a group needs; `RayGrid` implements it."""

    @property
    def count(self) -> int:
        """Number of workers."""
        ...

    def together(
        self, calls: Sequence[Call], results: int = 1, patience: float | None = None
    ) -> list[Any]:
        """Begin all calls at once; return their results in the order of the calls.

        Args:
            calls: each worker carries out its calls in this order.
            results: number of results per call. All but the first are returned as references, and
                outlive the worker.
            patience: seconds that other workers may take after the first failure, before they are
                ended.

        Raises:
            WorkerLostError: a worker died; it is being restarted.
            RuntimeError: a call failed, with the worker's traceback.
        """
        ...

    def put(self, value: object) -> object:
        """Store a value for the workers; return its reference."""
        ...

    def fetch(self, references: Sequence[Any]) -> list[Any]:
        """Return the stored values."""
        ...

    def wait_until_whole(self) -> None:
        """Return when all workers answer."""
        ...


class SharedTensors(Mapping[str, torch.Tensor]):
    """Tensors stored in shares by the workers; reading one tensor reads all shares.

    Attributes:
        references: references to the stored shares.
        version: name of these tensors on the workers that hold them.
        finite: whether no entry is NaN or infinite.
    """

    def __init__(
        self,
        group: CollectiveExecutor,
        references: Sequence[Any],
        names: Iterable[str],
        *,
        finite: bool = True,
        version: str = "",
    ) -> None:
        self._group, self._names = group, dict.fromkeys(names)
        self.references, self.version, self.finite = references, version, finite

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return a whole tensor."""
        return self._whole[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._names)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._names)

    @cached_property
    def _whole(self) -> dict[str, torch.Tensor]:
        return self._group.read(self.references)


@dataclass(frozen=True, eq=False)
class SharedSum(WeightedSum):
    """A sum that the workers of `group` hold."""

    group: CollectiveExecutor = field(kw_only=True)

    def release_(
        self, factor: float, stddev: float, noise: NoiseKey, earlier: NoiseMemory | None = None
    ) -> Release:
        """Add noise, each worker to its share."""
        return self.group.release(factor, stddev, noise)


class SharedRelease(Release):
    """A release that the workers of a group hold."""

    def __init__(self, group: CollectiveExecutor, norms: Sequence[tuple[float, float]]) -> None:
        estimates, noised = zip(*norms, strict=True)
        super().__init__({}, math.hypot(*estimates))
        self._group, self.norm = group, math.hypot(*noised)
        self.num_entries = group.num_entries

    def stepped(self, step: Step, trained: Trained, *, keep: bool) -> Trained:
        """Step each share on its worker; the shares before the step stay stored."""
        return self._group.stepped(step, trained)


class CollectiveExecutor(GridExecutor):
    """The workers compute sums, noise and step; the server gets only counts and norms.

    If a worker dies, the round fails before any of its results leave the workers. The group is then
    formed again, and the round is repeated with the same cohort and noise, from the shares that the
    workers stored after the last round.

    Args:
        crew: the workers.
        spec: the run's settings for the clients.
        shard_size: see `GridExecutor`.
        tokens: see `GridExecutor`.
        whole: do not divide a parameter among workers.
    """

    def __init__(
        self,
        crew: Crew,
        spec: ClientSpec,
        shard_size: int = 0,
        tokens: npt.NDArray[np.int64] | None = None,
        *,
        whole: bool = False,
    ) -> None:
        super().__init__(_ByNode(crew), spec, shard_size, tokens)
        self._crew, self._whole = crew, whole
        self._worker_device = spec.device
        # NCCL needs a GPU for each worker.
        own_gpu = spec.device.startswith("cuda") and spec.gpu_share >= 1.0
        self._backend = "nccl" if own_gpu else "gloo"
        self._shares = Shares({}, crew.count)
        self._formed = False
        self._phases: list[Callable[[], Any]] = []  # of this round, so far

    def clipped_sum(self, parameters: Tensors, cohort: Keys, clip: Clip, round: int) -> SharedSum:
        """Return the counts of the sum over the cohort; its values stay on the workers.

        Raises:
            RuntimeError: a shard failed, or workers died too often.
        """
        self._phases = []
        if not isinstance(parameters, SharedTensors):
            parameters = self._put_parameters(parameters)
        begin = ("begin", parameters.version, self._worker_device, parameters.references)

        def compute() -> WeightedSum:
            self._together(*begin)
            return super(CollectiveExecutor, self).clipped_sum({}, cohort, clip, round)

        total = self._phase(compute)
        counts = {each.name: getattr(total, each.name) for each in fields(WeightedSum)}
        return SharedSum(**counts, group=self)

    def release(self, factor: float, stddev: float, noise: NoiseKey) -> Release:
        """Add up the workers' sums and add noise, share by share."""
        norms = self._phase(lambda: self._together("noise", factor, stddev, noise))
        release = SharedRelease(self, norms)
        if not math.isfinite(release.estimate_norm):
            raise RuntimeError(f"the estimate has norm {release.estimate_norm}; it must be finite")
        return release

    def stepped(self, step: Step, trained: Trained) -> Trained:
        """Take a step of the server's optimizer, share by share."""
        states, averages = (self._references(each) for each in trained[1:])

        def phase() -> tuple[str, list[Any]]:
            version = uuid4().hex
            calls = [
                (rank, "member", "step", version, step, [state], [average])
                for rank, (state, average) in enumerate(zip(states, averages, strict=True))
            ]
            return version, self._crew.together(calls, results=4, patience=_PATIENCE)

        version, results = self._phase(phase)
        self._phases = []  # the round is done, so the inputs of its phases may be dropped
        heads, *references = zip(*results, strict=True)
        finite, state_names, mean_names = zip(*heads, strict=True)
        moved = SharedTensors(
            self, references[0], self._shares.shapes, finite=all(finite), version=version
        )
        state = SharedTensors(self, references[1], chain(*state_names))
        return Trained(moved, state, SharedTensors(self, references[2], chain(*mean_names)))

    def read(self, references: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Join stored shares; return the whole tensors on the server's device."""
        parts = [tensors_of(part) for part in self._crew.fetch(references)]
        whole = self._shares.join(parts)
        return {name: value.to(self._device, copy=True) for name, value in whole.items()}

    @property
    def num_entries(self) -> int:
        """Number of entries of all shares."""
        return sum(self._shares.size(rank) for rank in range(self._shares.count))

    def _put_parameters(self, parameters: Tensors) -> SharedTensors:
        shares = Shares.of(parameters, self._crew.count, whole=self._whole)
        self._formed &= shares == self._shares
        self._shares = shares
        self._device = next(iter(parameters.values())).device
        return SharedTensors(self, self._references(parameters), parameters, version=uuid4().hex)

    def _references(self, tensors: Tensors) -> Sequence[Any]:
        if isinstance(tensors, SharedTensors):
            return tensors.references
        ranks = range(self._shares.count)
        return [self._crew.put(stored(self._shares.cut(tensors, rank))) for rank in ranks]

    def _together(self, *call: Any) -> list[Any]:  # noqa: ANN401
        calls = [(rank, "member", *call) for rank in range(self._crew.count)]
        return self._crew.together(calls, patience=_PATIENCE)

    def _phase(self, phase: Callable[[], Result]) -> Result:
        """Run a phase of the round; if a worker is lost, repeat all its phases so far."""
        self._phases.append(phase)
        repeated: list[Callable[[], Any]] = []
        reason = ""
        for _ in range(_ATTEMPTS):
            try:
                self._form()
                for earlier in repeated:
                    earlier()
                return phase()
            except WorkerLostError as error:
                self._formed, repeated, reason = False, self._phases[:-1], str(error)
                log.warning("a worker died; the round is repeated with the same draws")
        raise RuntimeError(f"workers died {_ATTEMPTS} times in one round: {reason}")

    def _form(self) -> None:
        if self._formed:
            return
        self._crew.wait_until_whole()
        (meeting,) = self._crew.together([(0, "member", "meeting")])
        calls = [
            (rank, "member", "join", meeting, rank, self._shares, self._backend)
            for rank in range(self._crew.count)
        ]
        self._crew.together(calls, patience=_PATIENCE)
        self._formed = True


class _ByNode(OneRunGrid):
    """Sends each message to the worker of its node only, since the sum stays there."""

    def __init__(self, crew: Crew) -> None:
        super().__init__()
        self._crew = crew

    def get_node_ids(self) -> Iterable[int]:
        return range(_FIRST_NODE, _FIRST_NODE + self._crew.count)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        sent, calls = list(messages), []
        for message in sent:
            meta = message.metadata
            envelope = Envelope(
                meta.dst_node_id, meta.message_type, meta.group_id, message.content, (), ()
            )
            calls.append((meta.dst_node_id - _FIRST_NODE, "answer", envelope))
        for message, content in zip(sent, self._crew.together(calls), strict=True):
            yield Message(content, reply_to=message)

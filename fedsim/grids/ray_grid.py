"""A grid of Ray actors: workers pull shards, and lost shards are repeated.

Flower's own engine never restarts a dead actor and keeps every reply in memory. Here Ray restarts a
dead actor, and its shard goes to another worker. Replies are returned in the order of the messages,
and only a bounded number of them waits, for cohorts of any size.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, Error, Message, RecordDict

from fedsim.errors import ConfigError
from fedsim.grids.collective import Call, WorkerLostError
from fedsim.grids.identity import OneRunGrid
from fedsim.grids.member import NotJoinedError
from fedsim.grids.ray_cluster import Share, connect, import_ray, require, require_here
from fedsim.grids.ray_worker import Envelope, Worker

_LARGE = 65_536  # array records of at least this size go through the object store
_LOOKAHEAD = 4  # shards per worker that may be ahead of the shard to be added next
_ATTEMPTS = 5  # of a shard, if its workers die
_POLL = 0.5  # seconds between two checks of the time without any worker
_PATIENCE = 60.0  # seconds without any worker before the round fails
_START = 12.0  # seconds to wait for free resources in a full cluster
_SLOW_START = 120.0  # seconds for processes to start if resources are free
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # in Ray's tracebacks
_FAILED = 1  # Flower's code of an unknown error


@dataclass
class _Job:
    """A message on its way: its position in the order, and the number of attempts."""

    number: int
    message: Message
    attempts: int = 0


class RayGrid(OneRunGrid):
    """Long-lived workers on this machine or on a cluster; a context manager.

    Args:
        app_name: the ClientApp's entry point under `fedsim.client_apps`.
        share: the number of workers and each worker's resources.
        address: address of an existing cluster; "" starts one here, which ends with the grid.

    Raises:
        ConfigError: no ray, no cluster, or too few resources for the workers.
    """

    def __init__(self, app_name: str, share: Share, address: str = "") -> None:
        self._ray = import_ray()
        if not address:
            require_here(share)
        connect(address)
        super().__init__()
        self._workers: list[Any] = []
        try:
            require(share)
            self._start_workers(app_name, share)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RayGrid:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers and the connection to Ray; a Ray that was started here ends too."""
        for worker in self._workers:
            self._ray.kill(worker)
        self._workers = []
        self._ray.shutdown()

    def get_node_ids(self) -> Iterable[int]:
        """Return one node per worker. A message goes to any free worker, not to its node."""
        return list(range(2, 2 + len(self._workers)))

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,
    ) -> Iterator[Message]:
        """Yield one reply per message, in order; an error reply has the worker's traceback."""
        return _Dispatch(self._ray, self._workers, iter(messages)).replies()

    @property
    def count(self) -> int:
        """Number of workers."""
        return len(self._workers)

    def together(
        self, calls: Sequence[Call], results: int = 1, patience: float | None = None
    ) -> list[Any]:
        """Begin all calls at once; return their results in order: see `collective.Crew`."""
        errors, outcomes = self._ray.exceptions, []
        for number, method, *arguments in calls:
            remote = getattr(self._workers[number], method).options(num_returns=results)
            outcomes.append(remote.remote(*arguments))
        heads = [each if results == 1 else each[0] for each in outcomes]
        waiting, failed, lost = heads, "", ""
        while waiting:
            timeout = patience if failed or lost else None
            ready, waiting = self._ray.wait(waiting, num_returns=1, timeout=timeout)
            for reference in ready or waiting:
                try:
                    if not ready:  # it waits for a worker that died
                        self._ray.kill(
                            self._workers[calls[heads.index(reference)][0]], no_restart=False
                        )
                    self._ray.get(reference)
                except errors.RayTaskError as error:
                    text = _COLOURS.sub("", str(error))
                    if isinstance(error.cause, NotJoinedError):
                        lost = text
                    else:
                        failed = text
                except errors.RayError as error:
                    lost = str(error)
            waiting = waiting if ready else []
        if lost:
            raise WorkerLostError(f"{lost}; another worker failed: {failed}" if failed else lost)
        if failed:
            raise RuntimeError(f"a worker failed: {failed}")
        replies = self._ray.get(heads)
        return (
            replies
            if results == 1
            else [(head, *each[1:]) for head, each in zip(replies, outcomes, strict=True)]
        )

    def put(self, value: object) -> object:
        """Store a value for the workers; return its reference."""
        return self._ray.put(value)

    def fetch(self, references: Sequence[Any]) -> list[Any]:
        """Return the stored values."""
        return list(self._ray.get([*references]))

    def wait_until_whole(self) -> None:
        """Return when all workers answer.

        Raises:
            RuntimeError: some do not answer for a minute.
        """
        pings = [_ping(worker) for worker in self._workers]
        _, missing = self._ray.wait(pings, num_returns=len(pings), timeout=_PATIENCE)
        if missing:
            raise RuntimeError(f"workers died, and not all came back within {_PATIENCE:g} s")

    def _start_workers(self, app_name: str, share: Share) -> None:
        actor = self._ray.remote(
            num_cpus=share.cpus, num_gpus=share.gpus, max_restarts=-1, max_task_retries=0
        )(Worker)
        free = self._ray.available_resources()
        self._workers = [actor.remote(app_name) for _ in range(share.workers)]
        pings = [worker.ready.remote() for worker in self._workers]
        # If the workers fit now, only their processes must start; else other work must end first.
        fits = share.workers * share.cpus <= free.get("CPU", 0.0) + 1e-9
        fits &= share.workers * share.gpus <= free.get("GPU", 0.0) + 1e-9
        patience = _SLOW_START if fits else _START
        there, missing = self._ray.wait(pings, num_returns=len(pings), timeout=patience)
        if missing:
            raise ConfigError(
                f"executor.workers = {share.workers}: {len(there)} could be placed within "
                f"{patience:g} s with {share.cpus:g} CPUs and {share.gpus:g} GPUs each; free in "
                f"the cluster were {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs"
            )
        self._ray.get(there)  # raises the error of a worker's start


class _Dispatch:
    """One round's messages on the workers."""

    def __init__(self, ray: Any, workers: list[Any], messages: Iterator[Message]) -> None:  # noqa: ANN401
        self._ray = ray
        self._messages = enumerate(messages)
        self._lookahead = _LOOKAHEAD * len(workers)
        self._free = deque(workers)
        self._lost: deque[_Job] = deque()
        self._busy: dict[Any, tuple[_Job, Any]] = {}  # keyed by the reference of the reply
        self._pings: dict[Any, Any] = {}  # workers that died, keyed by the reference of a ping
        self._alive = time.monotonic()  # when a worker was last busy or free
        self._done: dict[int, Message] = {}
        self._stored: dict[int, tuple[ArrayRecord, Any]] = {}  # keyed by identity, and kept alive
        self._exhausted = False
        self._next = 0

    def replies(self) -> Iterator[Message]:
        """Yield the replies in the order of the messages."""
        while True:
            self._assign()
            if self._next in self._done:
                self._next += 1
                yield self._done.pop(self._next - 1)
            elif self._busy or self._pings:
                self._wait()
            elif self._exhausted and not self._lost:
                return

    def _assign(self) -> None:
        while self._free and (job := self._following()) is not None:
            worker = self._free.popleft()
            reference = worker.answer.remote(*self._packed(job.message))
            self._busy[reference] = (job, worker)

    def _following(self) -> _Job | None:
        """Return a lost shard, or the next message if it is not too far ahead."""
        if self._lost:
            return self._lost.popleft()
        outstanding = len(self._busy) + len(self._done)
        if self._exhausted or outstanding >= self._lookahead:
            return None
        following = next(self._messages, None)
        if following is None:
            self._exhausted = True
            return None
        return _Job(*following)

    def _packed(self, message: Message) -> tuple[Any, ...]:
        """Return the envelope and references to large records, each stored once per round."""
        small, names, large = RecordDict(), [], []
        for name, record in message.content.items():
            if isinstance(record, ArrayRecord) and _num_bytes(record) >= _LARGE:
                if id(record) not in self._stored:
                    self._stored[id(record)] = (record, self._ray.put(record))
                names.append(name)
                large.append(self._stored[id(record)][1])
            else:
                small[name] = record
        meta = message.metadata
        ids = tuple(reference.hex() for reference in large)
        envelope = Envelope(
            meta.dst_node_id, meta.message_type, meta.group_id, small, tuple(names), ids
        )
        return (envelope, *large)

    def _wait(self) -> None:
        """Wait for the next event of the workers: a reply, an error, a death or a restart."""
        now = time.monotonic()
        if self._busy or self._free:
            self._alive = now
        elif now - self._alive > _PATIENCE:
            raise RuntimeError(f"all workers died, and none came back within {_PATIENCE:g} s")
        ready, _ = self._ray.wait([*self._busy, *self._pings], num_returns=1, timeout=_POLL)
        for reference in ready:
            if reference in self._busy:
                self._take_reply(reference)
            else:
                self._free.append(self._pings.pop(reference))

    def _take_reply(self, reference: Any) -> None:  # noqa: ANN401  (ray's references are untyped)
        job, worker = self._busy.pop(reference)
        errors = self._ray.exceptions
        try:
            content = self._ray.get(reference)
            self._done[job.number] = Message(content, reply_to=job.message)
            self._free.append(worker)
        except errors.RayTaskError as error:  # an error of the ClientApp, the same on every worker
            self._fail(job, _COLOURS.sub("", str(error)))
            self._free.append(worker)
        except errors.RayError as error:
            self._pings[_ping(worker)] = worker
            job.attempts += 1
            if job.attempts < _ATTEMPTS:
                self._lost.append(job)
            else:
                self._fail(job, f"{job.attempts} workers died while computing it: {error}")

    def _fail(self, job: _Job, reason: str) -> None:
        error = Error(code=_FAILED, reason=f"shard {job.number}: {reason}")
        self._done[job.number] = Message(error, reply_to=job.message)


def _ping(worker: Any) -> Any:  # noqa: ANN401  (ray's handles and references are untyped)
    """Return the reference of an answer, which waits for a worker that restarts."""
    return worker.ready.options(max_task_retries=-1).remote()


def _num_bytes(record: ArrayRecord) -> int:
    return sum(array.numpy().nbytes for array in record.values())

"""Workers of a group as forks of this process, which begin at once and can die where one says."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

import torch
from flwr.clientapp import ClientApp

from fedsim.grids import member as members
from fedsim.grids.collective import Call, WorkerLostError
from fedsim.grids.member import NotJoinedError
from fedsim.grids.ray_worker import Worker

_PATIENCE = 60.0


class Forks:
    """A `Crew`; what is stored lies in this process."""

    def __init__(self, app: ClientApp, workers: int) -> None:
        self._app, self.count = app, workers
        self._pipes: list[Connection] = []
        self._forks: list[Any] = []
        self.lost = 0
        self.deaths: list[tuple[int, str]] = []  # of the next calls: a worker, and where it dies
        for _ in range(workers):
            self._fork(len(self._pipes))

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        for fork in self._forks:
            fork.kill()
            fork.join()

    def _fork(self, rank: int) -> None:
        ours, theirs = multiprocessing.Pipe()
        fork = multiprocessing.get_context("fork").Process(
            target=_serve, args=(self._app, theirs), daemon=True
        )
        fork.start()
        theirs.close()
        self._forks[rank : rank + 1], self._pipes[rank : rank + 1] = [fork], [ours]

    def together(
        self, calls: Sequence[Call], results: int = 1, patience: float | None = None
    ) -> list[Any]:
        while self.deaths:
            rank, where = self.deaths.pop()
            self._pipes[rank].send(("die", where))
        for rank, *call in calls:
            self._pipes[rank].send(call)
        answers, failed, lost = [], "", False
        for rank, *_ in calls:
            try:
                hurry = patience if failed or lost else None
                if not self._pipes[rank].poll(hurry or _PATIENCE):
                    self._forks[rank].kill()
                kind, answer = self._pipes[rank].recv()
                if kind == "error" and answer.startswith(NotJoinedError.__name__):
                    lost = True
                elif kind == "error":
                    failed = answer
                answers.append(answer)
            except (EOFError, ConnectionResetError):
                lost = True
                self.lost += 1
                self._forks[rank].join()
                self._fork(rank)
        if lost:
            raise WorkerLostError("killed")
        if failed:
            raise RuntimeError(f"a worker failed: {failed}")
        return answers

    def replace(self, rank: int) -> None:
        """Kill an idle worker, and start another in its place, as Ray does."""
        self._forks[rank].kill()
        self._forks[rank].join()
        self.lost += 1
        self._fork(rank)

    def put(self, value: object) -> object:
        return value

    def fetch(self, references: Sequence[Any]) -> list[Any]:
        return list(references)

    def wait_until_whole(self) -> None:
        """They are forked when they are found dead."""


def _serve(app: ClientApp, pipe: Connection) -> None:
    torch.set_num_threads(1)
    worker = Worker("")
    worker._app = app
    member = members.this_member()
    with suppress(EOFError):
        while True:
            method, *arguments = pipe.recv()
            if method == "die":
                _die_at(arguments[0])
                continue
            try:
                if method == "answer":
                    _passed("compute")
                    answer = worker.answer(*arguments)
                else:
                    answer = getattr(member, arguments[0])(*arguments[1:])
                    _passed(f"after {arguments[0]}")
                pipe.send(("answer", answer))
            except Exception as error:
                pipe.send(("error", repr(error)))
    os._exit(0)


_deaths: list[str] = []


def _passed(where: str) -> None:
    if where in _deaths:
        os.kill(os.getpid(), signal.SIGKILL)


def _die_at(where: str) -> None:
    """Let this process die when it has passed a method, or its n-th exchange from now."""
    _deaths.append(where)
    exchange, done = torch.distributed.all_to_all_single, count(1)

    def counted(*arguments: Any) -> None:  # noqa: ANN401
        _passed(f"exchange {next(done)}")
        exchange(*arguments)

    setattr(torch.distributed, "all_to_all_single", counted)  # noqa: B010

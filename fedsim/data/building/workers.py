"""Tokenise batches in worker processes: results in order, a bounded number in flight.

They are started as `python -m fedsim.data.building.workers` and get their batches by standard
input. `multiprocessing` would import the caller's main module again, for which scripts and
notebooks are not written; and a worker whose parent was killed reads an end of file and exits.
Workers load neither torch nor the network.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from fedsim.data.building.tokenise import BatchTokeniser, Record, TokenisedBatch
from fedsim.errors import ConfigError

_MOST = 8  # about as many as one process that reads the source can keep busy
_ALONE = 20  # batches that take less time than to start a process
_AHEAD = 3  # batches in flight for each worker


def default_workers() -> int:
    """Return the default number of processes: one a CPU, at most eight."""
    if hasattr(os, "sched_getaffinity"):  # what this process may use; not on every system
        return min(_MOST, len(os.sched_getaffinity(0)))
    return min(_MOST, os.cpu_count() or 1)


def tokenise_batches(
    batches: Iterable[Sequence[Record]], tokeniser: BatchTokeniser, num_workers: int | None
) -> Iterator[TokenisedBatch]:
    """Yield the token ids of each batch, in order.

    Args:
        batches: of records.
        tokeniser: applied to each batch; if it cannot be pickled, in this process.
        num_workers: processes beside this one, from the first batch on; 0 for none; None for
            `default_workers` where there are more than a few batches.

    Raises:
        RuntimeError: a worker died. Errors of `tokeniser` are raised here, from any process.
    """
    remaining = iter(batches)
    message = _pickled(tokeniser)
    if num_workers is None:
        yield from map(tokeniser, islice(remaining, _ALONE))
        num_workers = default_workers()
    if num_workers < 1 or message is None:
        yield from map(tokeniser, remaining)
        return
    try:
        first = next(remaining)
    except StopIteration:
        return
    yield from _in_processes(first, remaining, message, num_workers)


def _in_processes(
    first: Sequence[Record], others: Iterator[Sequence[Record]], message: bytes, num_workers: int
) -> Iterator[TokenisedBatch]:
    crew, threads = _Crew(message), ThreadPoolExecutor(num_workers)
    waiting: deque[Future[TokenisedBatch]] = deque()
    try:
        for batch in chain([first], others):
            waiting.append(threads.submit(crew.work, batch))
            if len(waiting) >= _AHEAD * num_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)
        crew.dismiss()


class _Crew:
    """The worker processes, one for each thread that sends it batches."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._mine = threading.local()
        self._all: list[Any] = []

    def work(self, batch: Sequence[Record]) -> TokenisedBatch:
        """Tokenise one batch in the calling thread's process."""
        process = getattr(self._mine, "process", None) or self._start()
        try:
            _send(process.stdin, pickle.dumps(batch, pickle.HIGHEST_PROTOCOL))
            answer = pickle.load(process.stdout)  # noqa: S301  (our own process)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise RuntimeError(
                f"a tokenising process ended with status {process.wait()}; "
                "was there too little memory?"
            ) from error
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, TokenisedBatch)  # noqa: S101  (for the type checker)
        return answer

    def dismiss(self) -> None:
        """End all processes, by an end of file, and wait for them."""
        for process in self._all:
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):  # it has ended already
                    stream.close()
            process.wait()

    def _start(self) -> Any:  # noqa: ANN401  (no type says that its streams are never None)
        quiet = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        folders = [folder or str(Path.cwd()) for folder in sys.path]
        process: Any = subprocess.Popen(  # noqa: S603  (our own module)
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(folders)},
        )
        self._mine.process = process
        self._all.append(process)
        _send(process.stdin, self._message)
        return process


def _pickled(tokeniser: BatchTokeniser) -> bytes | None:
    """Return the settings as a message, or None where a new process could not read it."""
    if getattr(tokeniser.encode, "__module__", None) == "__main__":
        return None
    try:
        return pickle.dumps(tokeniser, pickle.HIGHEST_PROTOCOL)
    except Exception:  # a lambda, a lock, a handle: each kind of object has its own error
        return None


def _send(stream: BinaryIO, message: bytes) -> None:
    stream.write(message)
    stream.flush()


def main() -> None:
    """Read settings, then batches, until there are no more; answer each."""
    requests = sys.stdin.buffer
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not mix with the replies
    try:
        tokeniser = pickle.load(requests)  # noqa: S301  (our own parent)
        while True:
            batch = pickle.load(requests)  # noqa: S301
            try:
                answer: object = tokeniser(batch)
                message = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                message = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
                if type(error) in (ValueError, ConfigError):
                    message = pickle.dumps(type(error)(str(error)))
            _send(replies, message)
    except (EOFError, BrokenPipeError, KeyboardInterrupt, pickle.UnpicklingError):
        os._exit(0)  # the parent has exited, or is about to


if __name__ == "__main__":
    main()

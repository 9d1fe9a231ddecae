"""Processes that tokenise: batches in, in order out, no more of them on the way than needed.

They are started as `python -m fedsim.data.building.workers` and spoken to through their standard
input and output. `multiprocessing` would import the caller's main module again, which a script or a
notebook is not written for; and a worker whose parent was killed reads an end of file and goes.
Neither torch nor the network is loaded there.
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

from fedsim.data.building.arrivals import Arrived, Record, Tokenising

_MOST = 8  # the parent, which reads the source, keeps no more than about that many busy
_ALONE = 20  # batches that are done sooner than a process has started
_AHEAD = 3  # batches a worker may be behind the source


def default_workers() -> int:
    """Return how many processes tokenise where nobody says: a CPU each, at most eight."""
    if hasattr(os, "sched_getaffinity"):  # what this process may use; not on every system
        return min(_MOST, len(os.sched_getaffinity(0)))
    return min(_MOST, os.cpu_count() or 1)


def tokenised(
    batches: Iterable[Sequence[Record]], tokenising: Tokenising, num_workers: int | None
) -> Iterator[Arrived]:
    """Yield what each batch came to, in order.

    Args:
        batches: of records.
        tokenising: what is done; if it cannot be pickled, all happens in this process.
        num_workers: processes beside this one, from the first batch on; 0 for none; None for
            `default_workers` where there are more than a few batches.

    Raises:
        RuntimeError: a worker ended; whatever `tokenising` raises, from wherever it did.
    """
    remaining = iter(batches)
    message = _pickled(tokenising)
    if num_workers is None:
        yield from map(tokenising, islice(remaining, _ALONE))
        num_workers = default_workers()
    if num_workers < 1 or message is None:
        yield from map(tokenising, remaining)
        return
    try:
        first = next(remaining)
    except StopIteration:
        return
    yield from _in_processes(first, remaining, message, num_workers)


def _in_processes(
    first: Sequence[Record], others: Iterator[Sequence[Record]], message: bytes, num_workers: int
) -> Iterator[Arrived]:
    crew, threads = _Crew(message), ThreadPoolExecutor(num_workers)
    waiting: deque[Future[Arrived]] = deque()
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
    """A process for each thread that asks."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._mine = threading.local()
        self._all: list[Any] = []

    def work(self, batch: Sequence[Record]) -> Arrived:
        """Have the calling thread's process do one batch."""
        process = getattr(self._mine, "process", None) or self._start()
        try:
            _send(process.stdin, pickle.dumps(batch, pickle.HIGHEST_PROTOCOL))
            answer = pickle.loads(_receive(process.stdout))  # noqa: S301  (our own process)
        except (EOFError, OSError) as error:
            raise RuntimeError(
                f"a tokenising process ended with status {process.wait()}; "
                "was there too little memory?"
            ) from error
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, Arrived)  # noqa: S101  (for the type checker)
        return answer

    def dismiss(self) -> None:
        """Let all processes end, which an end of file makes them do."""
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


def _pickled(tokenising: Tokenising) -> bytes | None:
    """Return the settings as a message, or None where a new process could not read it."""
    if getattr(tokenising.encode, "__module__", None) == "__main__":
        return None
    try:
        return pickle.dumps(tokenising, pickle.HIGHEST_PROTOCOL)
    except Exception:  # a lambda, a lock, a handle: each kind of object has its own error
        return None


def _send(stream: BinaryIO, message: bytes) -> None:
    stream.write(len(message).to_bytes(8, "little"))
    stream.write(message)
    stream.flush()


def _receive(stream: BinaryIO) -> bytes:
    size = int.from_bytes(_exactly(stream, 8), "little")
    return _exactly(stream, size)


def _exactly(stream: BinaryIO, size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError
    return content


def main() -> None:
    """Read settings, then batches, until there are no more; answer each."""
    requests = sys.stdin.buffer
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is not an answer
    try:
        tokenising = pickle.loads(_receive(requests))  # noqa: S301  (our own parent)
        while True:
            batch = pickle.loads(_receive(requests))  # noqa: S301
            try:
                answer: object = tokenising(batch)
                message = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                message = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
                if type(error) is ValueError:
                    message = pickle.dumps(ValueError(str(error)))
            _send(replies, message)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        os._exit(0)  # the parent has gone, or goes


if __name__ == "__main__":
    main()

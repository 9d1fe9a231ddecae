"""Tokenise batches in worker processes: results in order, one batch in each process at a time.

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
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from fedsim.data.building.tokenise import BatchTokeniser, Record, TokenisedBatch
from fedsim.data.sources.conversations import RefusedError
from fedsim.errors import ConfigError

_MOST = 8  # about as many as one process that reads the source can keep busy
_ALONE = 20  # batches that take less time than to start a process


def default_workers() -> int:
    """Return the default number of processes: one a CPU, at most eight."""
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
    settings = _pickled(tokeniser)
    if num_workers is None:
        yield from map(tokeniser, islice(remaining, _ALONE))
        num_workers = default_workers()
    if num_workers < 1 or settings is None:
        yield from map(tokeniser, remaining)
        return
    busy: deque[_Worker] = deque()
    workers: list[_Worker] = []
    try:
        for batch in remaining:
            if len(workers) < num_workers:
                worker = _Worker(settings)
                workers.append(worker)
            else:
                worker = busy.popleft()
                yield worker.answer()
            worker.send(pickle.dumps(batch))
            busy.append(worker)
        for worker in busy:
            yield worker.answer()
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A process that tokenises; an answer is read before the next batch is sent."""

    def __init__(self, settings: bytes) -> None:
        quiet = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        folders = [folder or str(Path.cwd()) for folder in sys.path]
        self._process: Any = subprocess.Popen(  # noqa: S603  (our own module)
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(folders)},
        )
        self.send(settings)

    def send(self, message: bytes) -> None:
        try:
            self._process.stdin.write(message)
            self._process.stdin.flush()
        except OSError:
            raise self._died() from None

    def answer(self) -> TokenisedBatch:
        try:
            answer = pickle.load(self._process.stdout)  # noqa: S301  (our own process)
        except (EOFError, OSError, pickle.UnpicklingError):
            raise self._died() from None
        if isinstance(answer, Exception):
            raise answer
        batch: TokenisedBatch = answer
        return batch

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _died(self) -> RuntimeError:
        return RuntimeError(
            f"a tokenising process ended with status {self._process.wait()}; "
            "was there too little memory?"
        )


def _pickled(tokeniser: BatchTokeniser) -> bytes | None:
    """Return the settings as a message, or None where a new process could not read it."""
    if getattr(tokeniser.encode, "__module__", None) == "__main__":
        return None
    try:
        return pickle.dumps(tokeniser)
    except Exception:  # a lambda, a lock, a handle: each kind of object has its own error
        return None


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
            except RefusedError as error:
                answer = error
            except ConfigError as error:
                answer = ConfigError(str(error))
            except Exception as error:  # of any kind, which may not be one that can be sent
                answer = ValueError(f"{type(error).__name__}: {error}")
            pickle.dump(answer, replies)
            replies.flush()
    except (EOFError, BrokenPipeError, KeyboardInterrupt, pickle.UnpicklingError):
        os._exit(0)  # the parent has exited, or is about to


if __name__ == "__main__":
    main()

"""Records on disk, for a step that has to have seen all of them before it can let one go."""

from __future__ import annotations

import pickle
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from types import TracebackType

from fedsim.data.records import Record


class Spool:
    """A temporary file of records, read again in any order; gone when the `with` ends.

    In memory: 8 bytes a record. On disk: the texts and columns, under the system's temporary
    folder (`TMPDIR` moves it).
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  (closed by __exit__)
        self._starts = array("q")

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, record: Record) -> None:
        """Append one record."""
        self._starts.append(self._file.tell())
        pickle.dump((record.user, record.text, dict(record.columns)), self._file)

    def read(self, order: Iterable[int] | None = None) -> Iterator[Record]:
        """Yield the records as they came, or those of these numbers in this order."""
        self._file.seek(0)
        for number in range(len(self)) if order is None else order:
            if order is not None:
                self._file.seek(self._starts[number])
            yield Record(*pickle.load(self._file))  # noqa: S301  (our own, unnamed file)

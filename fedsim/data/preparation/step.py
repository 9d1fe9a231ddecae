"""The base of preparation steps: records in, records out, dropped records counted by reason."""

from __future__ import annotations

import pickle
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import ClassVar

from fedsim.data.sources.records import Record
from fedsim.utils.section import Section

ACROSS_USERS = "across users"


class Step(Section):
    """One step, with its settings as fields; frozen, so that a config can be hashed.

    A step streams: its docstring lists all data that it keeps in memory. It never receives a null
    or an empty text, and must be deterministic. It gets the columns that its fields with "column"
    in their name hold.

    Attributes:
        changes_text: whether the step rewrites texts; it cannot rewrite conversations.
        gives_owners: whether texts can have several owners after the step.
        compares_texts: whether one text of a user can decide whether another text of that user,
            with other owners, is kept. Steps that count texts do this too.
        per_user: whether a user's result depends only on that user's records. If not, one more user
            can change which records of *others* are trained on. A bound on one user's update then
            does not bound that user's influence; the report says so.
    """

    changes_text: ClassVar[bool] = False
    gives_owners: ClassVar[bool] = False
    compares_texts: ClassVar[bool] = False
    per_user: ClassVar[bool] = True

    step: str

    def reads_files(self) -> tuple[str, ...]:
        """Return the files that the step's result depends on: its field `file`."""
        file: str | None = getattr(self, "file", None)
        return () if file is None else (file,)

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield the records after the step; count dropped ones in `dropped`, by `reason`."""
        for record in records:
            kept = self.one(record)
            if isinstance(kept, str):
                dropped[self.reason(kept)] += 1
            else:
                yield kept

    def one(self, record: Record) -> Record | str:
        """Return the record after the step, or the reason to drop it; sees one record only."""
        raise NotImplementedError

    def reason(self, what: str) -> str:
        """Return the reason as the manifest and the report show it."""
        label = self.step if self.per_user else f"{self.step} ({ACROSS_USERS})"
        return f"{label}: {what}"


class Spool:
    """A temporary file of records, which can be read in any order; deleted after the `with` block.

    In memory: 8 bytes per record. On disk: the texts and columns, in the system's temporary folder
    (set by `TMPDIR`).
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  (closed by __exit__)
        self._starts = array("q")

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, record: Record) -> None:
        """Append one record."""
        self._starts.append(self._file.tell())
        pickle.dump(tuple(record._replace(columns=dict(record.columns))), self._file)

    def read(self, order: Iterable[int] | None = None) -> Iterator[Record]:
        """Yield the records in order of arrival, or in `order` (record numbers)."""
        self._file.seek(0)
        for number in range(len(self)) if order is None else order:
            if order is not None:
                self._file.seek(self._starts[number])
            yield Record(*pickle.load(self._file))  # noqa: S301  (our own, unnamed file)

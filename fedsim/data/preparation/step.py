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

    A step streams: it holds no more than its class says. It sees no null and no empty text, and
    must give the same records for the same input whenever it runs.

    Attributes:
        changes_text: whether the step rewrites texts, which it cannot do to conversations.
        gives_owners: whether texts have several owners after the step.
        compares_texts: whether what one text of a user says can decide about another of theirs,
            which may have other owners. It does too where texts are counted: of those that no
            earlier step dropped for what they say, or the source for being empty.
    """

    changes_text: ClassVar[bool] = False
    gives_owners: ClassVar[bool] = False
    compares_texts: ClassVar[bool] = False

    step: str

    @property
    def per_user(self) -> bool:
        """Whether the step treats a user's records by that user's records alone.

        If not, one user more can change which records of *another* enter the training, and a
        bound on one user's update no longer bounds what that user moves. The report says so.
        """
        return True

    def needs_columns(self) -> tuple[str, ...]:
        """Return the columns, beside user and text, that the step reads: its field `column`."""
        column: str | None = getattr(self, "column", None)
        return () if column is None else (column,)

    @property
    def column_field(self) -> str:
        """The name of the one field that says which columns the step reads, for errors."""
        return next(name for name in type(self).model_fields if "column" in name)

    def reads_files(self) -> tuple[str, ...]:
        """Return the files that the step's outcome depends on: its field `file`."""
        file: str | None = getattr(self, "file", None)
        return () if file is None else (file,)

    def rests_on(self) -> tuple[str, ...]:
        """Return the packages whose data or algorithm the step's outcome is."""
        return ()

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield the records after the step; count those that it drops in `dropped`, by `reason`."""
        for record in records:
            kept = self.one(record)
            if isinstance(kept, str):
                dropped[self.reason(kept)] += 1
            else:
                yield kept

    def one(self, record: Record) -> Record | str:
        """Return what becomes of a record that no other decides about, or why it is dropped."""
        raise NotImplementedError

    def reason(self, what: str) -> str:
        """Return the name under which the manifest and the report count something dropped."""
        label = self.step if self.per_user else f"{self.step} ({ACROSS_USERS})"
        return f"{label}: {what}"


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

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, record: Record) -> None:
        """Append one record."""
        self._starts.append(self._file.tell())
        pickle.dump(tuple(record._replace(columns=dict(record.columns))), self._file)

    def read(self, order: Iterable[int] | None = None) -> Iterator[Record]:
        """Yield the records as they came, or those of these numbers in this order."""
        self._file.seek(0)
        for number in range(len(self)) if order is None else order:
            if order is not None:
                self._file.seek(self._starts[number])
            yield Record(*pickle.load(self._file))  # noqa: S301  (our own, unnamed file)

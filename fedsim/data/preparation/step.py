"""What a step of a preparation is: records in, records out, and a count for each reason."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator

from fedsim.data.records import Record
from fedsim.section import Section

ACROSS_USERS = "across users"


class Step(Section):
    """One step, with its settings as fields; frozen, so that a config can be hashed.

    A step streams: it holds no more than its class says. It sees no null and no empty text, and
    must give the same records for the same input whenever it runs.
    """

    step: str

    @property
    def per_user(self) -> bool:
        """Whether what becomes of a user's records depends on that user's records alone.

        If not, one user more can change which records of *another* enter the training, and a
        bound on one user's update no longer bounds what that user moves. The report says so.
        """
        return True

    def needs_columns(self) -> tuple[str, ...]:
        """Return the columns, beside user and text, that the source must have."""
        return ()

    def reads_files(self) -> tuple[str, ...]:
        """Return the files whose content decides what the step does."""
        return ()

    @abstractmethod
    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield what is kept or made of `records`; count in `dropped`, by `reason`, what is not."""

    def reason(self, what: str) -> str:
        """Return the name under which the manifest and the report count something dropped."""
        return f"{self.label}: {what}"

    @property
    def label(self) -> str:
        """The step's name, marked if it looks across users."""
        return self.step if self.per_user else f"{self.step} ({ACROSS_USERS})"

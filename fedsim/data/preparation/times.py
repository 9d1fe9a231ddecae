"""Steps on when a text was written: a window of time, and the order of time."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

import numpy as np
from pydantic import field_validator, model_validator

from fedsim.data.preparation.step import Spool, Step
from fedsim.data.sources.records import Record


def instant(value: object) -> float | None:
    """Return a cell as seconds since 1970 (UTC), or None if it is no time.

    Numbers, and strings of digits, are seconds already; other strings are ISO 8601 or the Date of
    an e-mail. A time without a zone is UTC.
    """
    if isinstance(value, bool) or value is None:
        return None
    try:
        moment = value if isinstance(value, (int, float, np.floating)) else _moment(value)
        if isinstance(moment, datetime):
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        return float(moment) if math.isfinite(moment) else None
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _moment(value: object) -> datetime | float:
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    text = str(value).strip().removesuffix(" UTC")
    if text.isdecimal():
        return float(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return parsedate_to_datetime(text)


class TimeWindow(Step):
    """Keep what was written from `since` on and before `before` (ISO 8601, UTC). Streams."""

    step: Literal["time-window"] = "time-window"
    column: str
    since: str | None = None
    before: str | None = None

    @field_validator("since", "before", mode="before")
    @classmethod
    def _a_time(cls, value: object) -> str | None:
        # A year alone would be read as so many seconds.
        if value is not None and (instant(value) is None or str(value).isdecimal()):
            raise ValueError("wanted: a date or time such as 2018-01-01")
        return None if value is None else str(value)

    @model_validator(mode="after")
    def _one_end(self) -> TimeWindow:
        if self.since is None and self.before is None:
            raise ValueError("give since, before or both")
        return self

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield the records in the window."""
        since, before = instant(self.since), instant(self.before)
        for record in records:
            time = instant(record.columns[self.column])
            if time is None:
                dropped[self.reason("no time")] += 1
            elif since is not None and time < since:
                dropped[self.reason(f"before {self.since}")] += 1
            elif before is not None and time >= before:
                dropped[self.reason(f"from {self.before} on")] += 1
            else:
                yield record


class SortByTime(Step):
    """Put the records in the order of time, each user's oldest first; equals stay as they came.

    With `data.held_out_rule = "last"` a user's newest texts are then the ones held out. In
    memory: 24 bytes a record, the spool.
    """

    step: Literal["sort-by-time"] = "sort-by-time"
    column: str

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield the oldest record first; drop those without a time."""
        with Spool() as spool:
            times = array("d")
            for record in records:
                time = instant(record.columns[self.column])
                if time is None:
                    dropped[self.reason("no time")] += 1
                else:
                    times.append(time)
                    spool.add(record)
            yield from spool.read(np.argsort(np.frombuffer(times), kind="stable"))

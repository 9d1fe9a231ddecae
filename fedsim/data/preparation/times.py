"""Steps on the time of a text: keep a time window, and sort by time."""

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
from fedsim.data.sources.names import MISSING
from fedsim.data.sources.records import Record
from fedsim.errors import ConfigError

_UNITS = (1, 1e3, 1e6, 1e9)  # units per second
_SINCE, _UNTIL = 1e8, 1e10  # seconds: in each unit the years 1973 to 2286, so that no two overlap


def instant(value: object, *, any_number: bool = False) -> float | None:
    """Return a cell as seconds since 1970 (UTC), or None if it is empty.

    Numbers and strings of digits are seconds, milliseconds, microseconds or nanoseconds: the unit
    that gives a year from 1973 to 2286. Eight digits are a date, fourteen a date and time. Other
    strings are ISO 8601 or the Date of an e-mail. A time without a zone is UTC.

    Args:
        value: the cell.
        any_number: whether to return a number in an unknown unit unchanged.

    Raises:
        ValueError: the cell is not a time, or is a number in an unknown unit.
    """
    if value is None or value != value or str(value).strip().lower() in MISSING:  # noqa: PLR0124
        return None
    try:
        moment = _moment(value)
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return zoned.timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        number = float(str(value))
        for unit in _UNITS:
            if _SINCE <= number / unit < _UNTIL:
                return number / unit
        if any_number and math.isfinite(number):
            return number
        raise ValueError("a number in an unknown unit") from None


def _moment(value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    text = str(value).strip().removesuffix(" UTC")
    if text.isdecimal():
        if len(text) not in (8, 14):
            raise ValueError("a date has 8 or 14 digits")
        return datetime.fromisoformat(f"{text[:8]}T{text[8:] or '000000'}")
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return parsedate_to_datetime(text)


def _time_of(record: Record, step: TimeWindow | SortByTime) -> float | None:
    """Return a record's time.

    Raises:
        ConfigError: the cell is not a time; the message names the row.
    """
    try:
        return instant(record.columns[step.column], any_number=isinstance(step, SortByTime))
    except ValueError:
        raise ConfigError(
            f"data.preparation: {step.step}: column = {step.column!r}: row {record.row}: is not "
            "a time; wanted: ISO 8601 such as 2018-01-31T13:30:00, the Date of an e-mail, or "
            "(milli-, micro-, nano-) seconds since 1970"
        ) from None


class TimeWindow(Step):
    """Keep texts with a time t, since <= t < before (ISO 8601, UTC). Streams."""

    step: Literal["time-window"] = "time-window"
    column: str
    since: str | None = None
    before: str | None = None

    @field_validator("since", "before", mode="before")
    @classmethod
    def _a_time(cls, value: object) -> str | None:
        # A bare year would be read as a number of seconds.
        if value is not None and (str(value).isdecimal() or instant(value) is None):
            raise ValueError("wanted: a date or time such as 2018-01-01")
        return None if value is None else str(value)

    @model_validator(mode="after")
    def _one_end(self) -> TimeWindow:
        if self.since is None and self.before is None:
            raise ValueError("give since, before or both")
        return self

    def one(self, record: Record) -> Record | str:
        """Keep a record in the window."""
        time, since, before = _time_of(record, self), instant(self.since), instant(self.before)
        if time is None:
            return "no time"
        if since is not None and time < since:
            return f"before {self.since}"
        if before is not None and time >= before:
            return f"from {self.before} on"
        return record


class SortByTime(Step):
    """Sort the records by time, oldest first; the sort is stable.

    With `data.held_out_rule = "last"` a user's newest texts are then held out. In memory: 24 bytes
    per record, the spool.
    """

    step: Literal["sort-by-time"] = "sort-by-time"
    column: str

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield the oldest record first; drop those without a time."""
        with Spool() as spool:
            times = array("d")
            for record in records:
                time = _time_of(record, self)
                if time is None:
                    dropped[self.reason("no time")] += 1
                else:
                    times.append(time)
                    spool.add(record)
            yield from spool.read(np.argsort(np.frombuffer(times), kind="stable"))

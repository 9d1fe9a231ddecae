"""Times in whatever form a source has them, windows of time, and the order of time."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from fedsim.data.preparation.times import instant
from fedsim.errors import ConfigError
from tests.unit.preparation.preparation_samples import prepare, step

NEW_YEAR_2018 = 1_514_764_800.0


@pytest.mark.parametrize(
    "value",
    [
        1_514_764_800,
        1_514_764_800.0,
        *("1514764800", "1514764800.000000", "1514764800000", "15147648e5"),
        *(1_514_764_800_000, 1_514_764_800_000_000, 1_514_764_800_000_000_000),
        *("20180101", 20180101, "20180101000000"),
        "2018-01-01",
        "2018-01-01 00:00:00 UTC",
        "2018-01-01T01:00:00+01:00",
        "Sun, 31 Dec 2017 16:00:00 -0800 (PST)",
        date(2018, 1, 1),
        datetime(2018, 1, 1),
        datetime(2018, 1, 1, tzinfo=UTC),
    ],
)
def test_one_instant_in_many_forms(value: object) -> None:
    assert instant(value) == NEW_YEAR_2018


@pytest.mark.parametrize("value", [None, "", " ", float("nan"), "NaT", "null", "None", "-"])
def test_no_time(value: object) -> None:
    assert instant(value) is None


@pytest.mark.parametrize(
    "value",
    [
        *("soon", True, [1], "2018-13-01", "01/02/2018 10:00 AM", "2018-01-01 10:00 AM"),
        *(0, 2018, "2018", 20181301, 10**11 - 1, 10**400, "9" * 400, float("inf")),
        "Sun, 31 Dec 2017 16:00:00 +9999999999999999999",
        "Sun, 31 Dec 99999999999999999999 16:00:00 -0800",
    ],
)
def test_what_is_no_time_is_refused_with_its_row_and_its_shape(value: object) -> None:
    dates: list[dict[str, object]] = [{"date": "2018-01-01"}, {}, {"date": value}]
    rows = list(zip(("ann", "bob", "ann"), ("x", None, "y"), dates, strict=True))
    with pytest.raises(ConfigError, match=r"time-window: column = 'date': row 3: ") as caught:
        prepare(rows, step("time-window", column="date", since="2018-01-01"))
    assert "01/02" not in str(caught.value)
    assert "soon" not in str(caught.value)


def test_a_window_has_its_first_moment_and_not_its_last() -> None:
    times = ["2017-12-31", "2018-01-01", "2018-01-31T23:59:59", "2018-02-01", None]
    rows = [("ann", str(time), {"date": time}) for time in times]
    window = step("time-window", column="date", since="2018-01-01", before="2018-02-01")
    kept, dropped = prepare(rows, window)
    assert [text for _, text in kept] == times[1:3]
    assert dropped == {
        "time-window: before 2018-01-01": 1,
        "time-window: from 2018-02-01 on": 1,
        "time-window: no time": 1,
    }


def test_the_oldest_first_and_equals_as_they_came() -> None:
    rows = [
        (user, text, {"date": when})
        for user, text, when in [
            ("ann", "new", 30),
            ("bob", "old", 10),
            ("ann", "none", None),
            ("ann", "first of two", 20),
            ("ann", "second of two", 20),
        ]
    ]
    kept, dropped = prepare(rows, step("sort-by-time", column="date"))
    assert [text for _, text in kept] == ["old", "first of two", "second of two", "new"]
    assert dropped == {"sort-by-time: no time": 1}


def test_nobody_has_no_order() -> None:
    kept, dropped = prepare([("ann", "x", {"date": None})], step("sort-by-time", column="date"))
    assert (kept, dropped) == ([], {"sort-by-time: no time": 1})

"""The lines of the study of private tuning, from made-up losses; and its configs."""

from __future__ import annotations

from fedsim.experiments.studies.papernot_2022.private_tuning import (
    DEFAULT,
    FULL,
    QUICK,
    Seed,
    _lines,
    _rows,
    candidates,
)
from fedsim.report.schema import Scores
from tests.unit.report.report_samples import report


def seed_of(default: float, other: float, tuned: float) -> Seed:
    found = report()
    final = found.utility.final.model_dump() | {"user_loss": tuned}
    utility = found.utility.model_copy(update={"final": Scores(**final)})
    chosen = found.model_copy(update={"utility": utility})
    return Seed({"0.001": other, DEFAULT: default}, chosen, "0.001")


def test_lines_are_what_they_are_called() -> None:
    seeds = [seed_of(5.0, 4.0, 4.2), seed_of(5.0, 6.0, 5.1), seed_of(5.0, 4.4, 4.5)]
    lines = _lines(QUICK, seeds)
    assert lines["defaults"] == [5.0, 5.0, 5.0]
    assert lines["tuned, paid for"] == [4.2, 5.1, 4.5]
    assert lines["tuned, uncharged"] == [4.0, 5.0, 4.4]
    assert lines["hindsight (0.001)"] == [4.0, 6.0, 4.4]
    rows = {row[0]: row for row in _rows(lines)}
    assert rows["tuned, paid for"][1:3] == ["4.6000", "-0.4000"]
    assert rows["tuned, paid for"][4] == "2 of 3"
    assert rows["defaults"][3] == "–"


def test_the_candidates_differ_in_their_rate_alone() -> None:
    cells = candidates(FULL, 3)
    assert DEFAULT in FULL.rates
    assert [f"{cell.config.server.learning_rate:g}" for cell in cells] == list(FULL.rates)
    bare = [cell.config.model_dump(exclude={"server": {"learning_rate"}}) for cell in cells]
    assert all(each == bare[0] for each in bare)
    assert {cell.config.seed for cell in cells} == {3}

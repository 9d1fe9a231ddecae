"""Steps in a row, from a source: order, nulls, columns, fingerprint, the report's sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsim.config import parse_config
from fedsim.data.config import DataConfig
from fedsim.data.preparation.prepare import assumptions
from fedsim.data.reading import records, source_fingerprint
from fedsim.errors import ConfigError
from tests.conftest import write_rows
from tests.unit.preparation.preparation_samples import prepare as prepared_by
from tests.unit.preparation.preparation_samples import step

MIN_2 = {"step": "min-examples", "count": 2}
DEDUPE = {"step": "exact-duplicates"}
ROWS: list[dict[str, Any]] = [
    {"speaker": "ann", "text": "x", "date": 3},
    {"speaker": "ann", "text": "x", "date": 2},
    {"speaker": "bob", "text": "y", "date": 1},
    {"speaker": "bob", "text": "z", "date": 0},
    {"speaker": None, "text": "z", "date": 0},
    {"speaker": "bob", "text": None, "date": 0},
    {"speaker": "bob", "text": " ", "date": 0},
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    return write_rows(path, ROWS)


def _config(source: Path, *steps: dict[str, Any]) -> DataConfig:
    return parse_config({"data": {"source": str(source), "preparation": list(steps)}}).data


def test_steps_are_taken_in_their_order(source: Path) -> None:
    unusable = {"null user": 1, "null text": 1, "empty text": 1}
    prepared = records(_config(source, DEDUPE, MIN_2))
    assert [record[:2] for record in prepared] == [("bob", "y"), ("bob", "z")]
    assert prepared.dropped == unusable | {
        "exact-duplicates: same text of the same user": 1,
        "min-examples: user has fewer than 2": 1,
    }
    prepared = records(_config(source, MIN_2, DEDUPE))
    assert [record[:2] for record in prepared] == [("ann", "x"), ("bob", "y"), ("bob", "z")]


def test_a_step_gets_the_columns_it_asks_for(source: Path) -> None:
    by_time = {"step": "sort-by-time", "column": "date"}
    assert [record.text for record in records(_config(source, by_time))] == ["z", "y", "x", "x"]


@pytest.mark.parametrize("name", ["rows.jsonl", "shakespeare"])
def test_a_column_that_is_not_there(source: Path, name: str) -> None:
    given = source if name == source.name else Path(name)
    by_time = {"step": "sort-by-time", "column": "when"}
    expected = r"data\.preparation\.1\.column.*no (such )?column"
    with pytest.raises(ConfigError, match=expected):
        list(records(_config(given, DEDUPE, by_time)))


@pytest.mark.parametrize(
    ("asking", "key"),
    [
        ({"step": "time-window", "column": "when", "since": "2018-01-01"}, "column"),
        ({"step": "drop-forwards", "subject_column": "when"}, "subject_column"),
        ({"step": "expand-receivers", "columns": ["date", "when"]}, "columns"),
    ],
)
def test_a_column_that_is_not_there_is_named_with_the_key_that_asks(
    source: Path, asking: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError, match=rf"data\.preparation\.1\.{key} = 'when': "):
        list(records(_config(source, MIN_2, asking)))


def test_the_fingerprint_follows_the_steps_and_their_files(source: Path, tmp_path: Path) -> None:
    aliases = tmp_path / "aliases.json"
    aliases.write_text("{}")
    merge = {"step": "merge-users", "file": str(aliases)}
    chains = [(), (MIN_2,), ({**MIN_2, "count": 3},), (DEDUPE, MIN_2), (MIN_2, DEDUPE), (merge,)]
    found = [source_fingerprint(_config(source, *chain)) for chain in chains]
    assert len(set(found)) == len(chains)
    assert found[0] == source_fingerprint(DataConfig(source=str(source)))
    aliases.write_text('{"a": "b"}')
    assert source_fingerprint(_config(source, merge)) != found[-1]
    aliases.unlink()
    with pytest.raises(ConfigError, match=r"data\.preparation\.0\.file = .*: no such file"):
        source_fingerprint(_config(source, merge))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (
            {"step": "min-exampels", "count": 2},
            "data.preparation.0.step = 'min-exampels': unknown; did you mean 'min-examples'?",
        ),
        (
            {"step": "min-examples", "cuont": 2},
            "data.preparation.0.cuont: unknown key; did you mean 'count'?",
        ),
        ({"step": "min-examples", "count": 0}, "data.preparation.0.count = 0: "),
        ({"count": 2}, 'data.preparation.0: give step = "drop-forwards" or step = '),
        ({"step": "text-length"}, "data.preparation.0: give minimum, maximum or both"),
    ],
)
def test_a_wrong_step_is_met_with_what_would_do(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config({"data": {"preparation": [given]}})
    assert any(line.startswith(complaint) for line in str(raised.value).splitlines())


def test_steps_across_users_are_said_by_config_and_by_store() -> None:
    across = step("mailbox-owner", column="path")
    assert assumptions([step("min-examples", count=2)], {"null user": 3}) == ()
    (said,) = assumptions([across], {})
    assert "looked across users (mailbox-owner)" in said
    _, dropped = prepared_by(
        [("ann", "x", {"path": "org-a/1"})], across
    )  # drops nothing, and yet it looked
    assert assumptions([], dropped) == (said,)

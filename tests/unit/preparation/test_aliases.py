"""One person under several names becomes one user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsim.errors import ConfigError
from tests.unit.preparation.preparation_samples import prepare, step

ROWS = [("a@home.org", "1"), ("a@work.org", "2"), ("b@work.org", "3")]


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_aliases_become_the_person(tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"aliases.{kind}"
    pairs = {"a@home.org": "ann", "a@work.org": "ann", "c@x.org": "eve"}
    if kind == "json":
        file.write_text(json.dumps(pairs))
    else:
        lines = [f"{alias},{person}" for alias, person in pairs.items()]
        file.write_text("\n".join(["alias,person", *lines]))
    kept, dropped = prepare(ROWS, step("merge-users", file=str(file)))
    assert kept == [("ann", "1"), ("ann", "2"), ("b@work.org", "3")]
    assert dropped == {}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", '["ann"]', "wanted: a JSON object"),
        ("a.json", '{"a": 1}', "alias number 1: no name, or no person's; wanted: two names"),
        (
            "a.csv",
            "alias,person\na\n",
            "alias number 1: no name, or no person's; wanted: two names",
        ),
        (
            "a.csv",
            "alias,person\n,ann\n",
            "alias number 1: no name, or no person's; wanted: two names",
        ),
        ("a.json", "{", "Expecting property name"),
        ("a.csv", "from,to\na,b\n", "columns alias and person"),
        ("a.csv", "", "columns alias and person"),
        ("a.csv", "alias,person\na,b\na,c\n", "line 3: an alias of another person before"),
        ("a.json", '{"a": "b", "b": "c"}', "alias number 1: its person is an alias of another"),
    ],
)
def test_a_file_that_says_nothing_clear(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    expected = rf"^data\.preparation: merge-users: file = .*{message}"
    with pytest.raises(ConfigError, match=expected):
        prepare(ROWS, step("merge-users", file=str(tmp_path / name)))

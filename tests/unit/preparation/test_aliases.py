"""One person under several names becomes one user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsim.data.preparation.prepare import Prepared
from fedsim.data.sources.records import RawRecord
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


def test_owners_are_renamed_with_users(tmp_path: Path) -> None:
    """Else one person would be two owners, each with a guarantee that leaves the other out."""
    (tmp_path / "aliases.json").write_text(json.dumps({"a@home.org": "ann", "a@work.org": "ann"}))
    merge = step("merge-users", file=str(tmp_path / "aliases.json"))
    mails = [RawRecord("b", "1", {}, ("a@home.org", "c", "a@work.org"))]
    assert next(Prepared(mails, [merge]).stream).owners == ("ann", "c")
    lower = step("user-name", transform="lower-case")
    mails = [RawRecord("B", "1", {}, ("Ann", "ANN"))]
    assert next(Prepared(mails, [lower]).stream)[::3] == ("b", ("ann",))


def test_owners_of_mails_and_threads() -> None:
    columns = {"to": "Bob <bob@x.org>, cy@x.org", "cc": ["BOB@x.org"], "bcc": None}
    mails = [RawRecord("ann@x.org", "1", columns, ("dee",))]
    read = list(Prepared(mails, [step("receivers")]).stream)
    assert read[0].owners == ("dee", "bob@x.org", "cy@x.org")
    threads = [("ann", "t1"), ("bob", "t1"), ("ann", 2), ("cy", None), ("dee", None)]
    posts = [RawRecord(user, "x", {"thread": thread}) for user, thread in threads]
    read = list(Prepared(posts, [step("participants", column="thread")]).stream)
    assert [set(record.owners) for record in read] == [
        {"ann", "bob"},
        {"ann", "bob"},
        {"ann"},
        set(),
        set(),
    ]


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

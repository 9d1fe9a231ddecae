"""One person under several names becomes one user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedsim.config import parse_config
from fedsim.data.preparation.prepare import Prepared, assumptions
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
    assert next(iter(Prepared(mails, [merge]))).owners == ("ann", "c")
    lower = step("user-name", transform="lower-case")
    mails = [RawRecord("B", "1", {}, ("Ann", "ANN"))]
    assert next(iter(Prepared(mails, [lower])))[::3] == ("b", ("ann",))


@pytest.mark.parametrize(
    "names",
    [
        ("hub@x.org", "Hub@X.org", "HUB <hub@x.org>", "'hub@x.org'"),
        ("jos\u00e9", "Jose\u0301", "JOSE\u0301", "\uff2aos\u00e9"),
        ("person-1", "person\u20111", "Person\u00ad-1", "person\u22121"),
        ("7", "7.0", "7.00", "\uff17"),
        ("ann lee", "Ann  Lee", "ANN\u00a0LEE", "ann\u200f lee"),
        ("o'brien", "O\u2019Brien"),
    ],
)
def test_names_that_look_alike_get_one_spelling(names: tuple[str, ...]) -> None:
    """Of users and owners, and others stay apart."""
    merge = step("user-name", transform="one-spelling")
    posts = [RawRecord(name, "x", {}, (name, "007", "7.5")) for name in names]
    read = list(Prepared(posts, [merge]))
    assert {(record.user, record.owners) for record in read} == {
        (names[0], (names[0], "007", "7.5"))
    }


def test_owners_of_mails_and_threads() -> None:
    columns = {"to": "Bob <bob@x.org>, cy@x.org,", "cc": ["BOB@x.org"], "bcc": None}
    mails = [RawRecord("Ann@X.org", "1", columns, ("DEE <dee@x.org>",))]
    read = list(Prepared(mails, [step("receivers")]))
    assert read[0].user == "ann@x.org"
    assert read[0].owners == ("dee@x.org", "bob@x.org", "cy@x.org")
    threads = [("ann", "t1"), ("bob", "t1"), ("ann", 2), ("cy", None), ("dee", None)]
    posts = [RawRecord(user, "x", {"thread": thread}) for user, thread in threads]
    read = list(Prepared(posts, [step("participants", column="thread")]))
    assert [set(record.owners) for record in read] == [
        {"ann", "bob"},
        {"ann", "bob"},
        {"ann"},
        set(),
        set(),
    ]


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_spaces_around_an_alias_or_a_person_are_no_part_of_it(tmp_path: Path, kind: str) -> None:
    """Else the file would make a second person of each name that has some."""
    pairs = {"bob": " Robert", "bobby ": "\u200eRobert", "ann": "Ann "}
    (tmp_path / "a.json").write_text(json.dumps(pairs))
    rows = ["alias,person", *(f"{alias},{person}" for alias, person in pairs.items()), "bob,Robert"]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    merge = step("merge-users", file=str(tmp_path / f"a.{kind}"))
    posts = [RawRecord(name, "x", {}, ("bobby", "Robert", "bob")) for name in ("bob", "bobby")]
    read = list(Prepared(posts, [merge]))
    assert [(record.user, record.owners) for record in read] == [("Robert", ("Robert",))] * 2


@pytest.mark.parametrize(
    ("user", "cell"),
    [
        ("a@x.org", "b@x.org c@x.org"),
        ("a@x.org", "undisclosed recipients"),
        ("a@x.org", ["b@x.org", None]),
        ("a@x.org", float("nan")),
        ("a@x.org", ["b@x.org", "the team"]),
        ("Ann", "b@x.org"),
    ],
)
def test_a_mail_with_somebody_who_is_not_named_is_dropped(user: str, cell: object) -> None:
    prepared = Prepared([RawRecord(user, "1", {"to": cell})], [step("receivers", columns=["to"])])
    assert list(prepared) == []
    assert prepared.dropped == {"receivers: owners not all named": 1}


RECEIVERS, THREADS = {"step": "receivers"}, {"step": "participants", "column": "thread"}
ORDERS: list[tuple[list[dict[str, Any]], str]] = [
    ([{"step": "merge-users", "file": "x.csv"}, RECEIVERS], "merge-users before receivers"),
    ([{"step": "user-name", "transform": "lower-case"}, RECEIVERS], "user-name before receivers"),
    ([{"step": "expand-receivers"}, RECEIVERS], "expand-receivers before receivers"),
    ([{"step": "min-examples", "count": 2}, THREADS], "min-examples before participants"),
    ([RECEIVERS, {"step": "user-words", "count": 9}], "user-words: a user's other texts decide"),
    (
        [{"step": "user-name", "transform": "first-author"}, THREADS],
        "user-name, first-author: ignores other authors",
    ),
]


@pytest.mark.parametrize(("steps", "message"), ORDERS)
def test_an_order_of_steps_that_loses_owners_is_refused(
    steps: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"preparation: {message}"):
        parse_config({"data": {"source": "x.jsonl", "preparation": steps}})


def test_steps_that_compare_texts_of_different_owners_are_named() -> None:
    steps = [step("exact-duplicates"), step("receivers")]
    assert assumptions(steps, {}) == ()
    (said,) = assumptions(steps, {}, co_owned=True)
    assert "or counted texts that can have different owners (exact-duplicates)" in said
    (said,) = assumptions([], {"exact-duplicates: same text of the same user": 1}, co_owned=True)
    assert "(exact-duplicates)" in said
    steps = [step("text-length", minimum=3), step("max-examples", count=2), step("receivers")]
    (said,) = assumptions(steps, {}, co_owned=True)
    assert "(max-examples): the content of one owner's text, or its removal, could decide" in said
    assert assumptions(steps[::2], {}, co_owned=True) == ()
    (said,) = assumptions([], {"min-examples: user has fewer than 2": 1}, co_owned=True)
    assert "(min-examples)" in said


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", '["ann"]', "wanted: a JSON object"),
        ("a.csv", "alias,person\n,ann\n", "alias number 1: wanted: two names"),
        ("a.json", "{", "Expecting property name"),
        ("a.csv", "from,to\na,b\n", "columns alias and person"),
        ("a.csv", "", "columns alias and person"),
        ("a.csv", "alias,person\na,b\na,c\n", "number 2: was already an alias of another"),
        ("a.json", '{"a": "b", "a": "c"}', "has a key twice"),
        ("a.csv", "alias,person\na,Smith, Ann\n", "columns alias and person"),
        ("a.csv", "alias,person\na, b\nb ,c\n", "alias number 1: its person is an alias of"),
    ],
)
def test_a_file_that_says_nothing_clear(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    expected = rf"^data\.preparation: merge-users: file = .*{message}"
    with pytest.raises(ConfigError, match=expected):
        prepare(ROWS, step("merge-users", file=str(tmp_path / name)))

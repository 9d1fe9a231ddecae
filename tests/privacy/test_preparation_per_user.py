"""Steps that say they treat each user alone do: without one user, nobody else's records change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.data.preparation.prepare import STEPS, Prepared
from fedsim.data.preparation.step import Step
from fedsim.data.sources.records import RawRecord
from tests.unit.preparation.preparation_samples import step

USERS = ["ann@x.org", "bob@x.org", "http://eve.org/a", "http://news.eve.org/b", "modbot"]
TEXTS = [
    "one two three",
    "One two  three",
    "four",
    "four four four four",
    "> four\nfive six seven eight",
    "see http://x.org now",
    "---- Forwarded by bob ----\nfour",
]
ROWS = st.lists(
    st.tuples(
        st.sampled_from(USERS),
        st.sampled_from(TEXTS),
        st.fixed_dictionaries(
            {
                "subject": st.sampled_from(["", "FW: x"]),
                "url": st.sampled_from(["http://x.org/a", "http://y.org", None]),
                "date": st.one_of(st.none(), st.integers(1_500_000_000, 1_500_000_005)),
                "to": st.lists(st.sampled_from(USERS[:2]), max_size=3),
                "file_name": st.sampled_from(["org-a/1", "org-a/2", "eve-b/1", "loose"]),
            }
        ),
    ),
    max_size=25,
)
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "drop-forwards": [{"subject_column": "subject"}],
    "drop-users": [{"containing": ["bot"]}],
    "expand-receivers": [{"columns": ["to"]}],
    "max-examples": [{"count": 2}, {"count": 2, "then": "drop-user"}],
    "min-examples": [{"count": 3}],
    "participants": [{"column": "file_name"}],
    "receivers": [{"columns": ["to"]}],
    "repeated-ngrams": [{"words": 2}],
    "sort-by-time": [{"column": "date"}],
    "text-length": [{"unit": "words", "minimum": 2, "maximum": 3}],
    "time-window": [{"column": "date", "since": "2017-07-14T02:40:01"}],
    "user-name": [
        {"transform": "lower-case"},
        {"transform": "email-address"},
        {"transform": "one-spelling"},
    ],
    "user-words": [{"count": 5}],
}
ACROSS = step("mailbox-owner", column="file_name")


@pytest.fixture(scope="module")
def per_user(tmp_path_factory: pytest.TempPathFactory) -> list[Step]:
    folder: Path = tmp_path_factory.mktemp("files")
    (folder / "aliases.json").write_text('{"modbot": "ann@x.org"}')
    files: dict[str, list[dict[str, Any]]] = {
        "merge-users": [{"file": str(folder / "aliases.json")}],
    }
    chosen: dict[str, list[dict[str, Any]]] = {
        **{name: [{}] for name in STEPS},
        **SETTINGS,
        **files,
    }
    steps = [step(name, **given) for name in STEPS for given in chosen[name] if name != ACROSS.step]
    assert {kind.step for kind in steps} | {ACROSS.step} == set(STEPS)
    return steps


def _of_others(rows: list[Any], taken: Step, left_out: set[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for user, text, *_ in Prepared([RawRecord(*row) for row in rows], [taken]):
        if user not in left_out:
            found.setdefault(user, []).append(text)
    return found


@settings(deadline=None, max_examples=25)
@given(rows=ROWS, user=st.sampled_from(USERS))
def test_leaving_out_a_user_changes_nothing_for_the_others(
    per_user: list[Step], rows: list[Any], user: str
) -> None:
    without = [row for row in rows if row[0] != user]
    for taken in per_user:
        assert taken.per_user
        # The user goes by the new name too, where the step gives one; "modbot" is ann's alias.
        own = {user, user.lower(), *(("ann@x.org", "modbot") if user == "modbot" else ())}
        assert _of_others(rows, taken, own) == _of_others(without, taken, own), taken


def test_the_step_that_looks_across_users_says_so_and_does() -> None:
    """One user's records decide another's: the reason why the report has a sentence on them."""
    assert not ACROSS.per_user
    ann = ("ann@x.org", "one two three", {"file_name": "org-a/1"})
    bob = ("bob@x.org", "one two three", {"file_name": "org-a/1"})
    alone = _of_others([bob], ACROSS, set())
    assert alone == {"bob@x.org": ["one two three"]}
    assert _of_others([ann, bob], ACROSS, {"ann@x.org"}) == {}

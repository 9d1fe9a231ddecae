"""Each step on a handful of records: what stays, and what is counted under which reason."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.preparation.preparation_samples import prepare, step

A, B = "ann", "bob"


def test_min_examples_drops_small_users_whole_and_keeps_the_order() -> None:
    rows = [(A, "1"), (B, "2"), (A, "3"), ("eve", "4"), (B, "5"), (A, "6")]
    kept, dropped = prepare(rows, step("min-examples", count=2))
    assert kept == [(A, "1"), (B, "2"), (A, "3"), (B, "5"), (A, "6")]
    assert dropped == {"min-examples: user has fewer than 2": 1}


def test_max_examples_keeps_the_first_or_drops_the_user() -> None:
    rows = [(A, "1"), (B, "2"), (A, "3"), (A, "4")]
    kept, dropped = prepare(rows, step("max-examples", count=2))
    assert kept == [(A, "1"), (B, "2"), (A, "3")]
    assert dropped == {"max-examples: beyond a user's first 2": 1}
    kept, dropped = prepare(rows, step("max-examples", count=2, then="drop-user"))
    assert kept == [(B, "2")]
    assert dropped == {"max-examples: user has more than 2": 3}


def test_user_words_gives_everybody_the_same_number() -> None:
    rows = [(A, "a b"), (B, "x y"), (A, "c  d\ne"), (A, "f"), (A, "g")]
    kept, dropped = prepare(rows, step("user-words", count=4))
    assert kept == [(A, "a b"), (A, "c d")]
    assert dropped == {
        "user-words: user has fewer than 4 words": 1,
        "user-words: beyond a user's first 4 words": 2,
    }


@pytest.mark.parametrize(("unit", "kept"), [("words", ["two words"]), ("characters", ["abcdef"])])
def test_text_length(unit: str, kept: list[str]) -> None:
    rows = [(A, "abcdef"), (A, "two words"), (A, "x"), (A, "one two three four")]
    limits = {"words": (2, 3), "characters": (2, 8)}[unit]
    found, dropped = prepare(
        rows, step("text-length", unit=unit, minimum=limits[0], maximum=limits[1])
    )
    assert [text for _, text in found] == kept
    assert dropped == {
        f"text-length: fewer than {limits[0]} {unit}": 2 if unit == "words" else 1,
        f"text-length: more than {limits[1]} {unit}": 1 if unit == "words" else 2,
    }


def test_exact_duplicates_are_a_users_own() -> None:
    rows = [(A, "same"), (B, "same"), (A, "same"), (A, "Same"), ("an", "nsame"), (A, "\ud800")]
    kept, dropped = prepare(rows, step("exact-duplicates"))
    assert kept == [*rows[:2], *rows[3:]]
    assert dropped == {"exact-duplicates: same text of the same user": 1}


def test_forwards_are_known_by_subject_or_by_the_line_over_them() -> None:
    texts = {
        "own": ("Re: lunch", "See you. I forwarded it."),
        "subject": ("Re: FW: lunch", "fyi"),
        "notes": ("lunch", "fyi\n------------- Forwarded by Ann on 1/2/01 -----\nbody"),
        "gmail": ("lunch", "---------- Forwarded message ---------\nbody"),
        "apple": (None, "Begin forwarded message:\n> body"),
        "forward in a word": ("forwarding rates", "The rates."),
    }
    rows = [(name, text, {"subject": subject}) for name, (subject, text) in texts.items()]
    kept, dropped = prepare(rows, step("drop-forwards", subject_column="subject"))
    assert [user for user, _ in kept] == ["own", "forward in a word"]
    assert dropped == {"drop-forwards: forwarded e-mail": 4}
    kept, _ = prepare(rows, step("drop-forwards"))
    assert [user for user, _ in kept] == ["own", "subject", "forward in a word"]


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("Yes.\n\n-----Original Message-----\nFrom: bob\nLunch?", "Yes."),
        ("Yes.\nOn Mon, 1 Jan 2001, Bob <b@x.org>\nwrote:\n> Lunch?", "Yes."),
        ("> Lunch?\nYes.\n> When?\nNoon.", "Yes.\nNoon."),
        ("5 > 3, as Bob wrote: so it is.", "5 > 3, as Bob wrote: so it is."),
        (
            "On reflection, no.\n\nLater I wrote:\nyes.",
            "On reflection, no.\n\nLater I wrote:\nyes.",
        ),
        ("> Lunch?", None),
    ],
)
def test_quotes_are_cut_from_replies(text: str, own: str | None) -> None:
    kept, dropped = prepare([(A, text)], step("strip-quotes"))
    assert kept == ([] if own is None else [(A, own)])
    assert dropped == ({"strip-quotes: nothing but quotes": 1} if own is None else {})


def test_a_record_for_every_receiver() -> None:
    rows: list[Any] = [
        (A, "x", {"to": ["b@x.org", "B@x.org"], "cc": "Eve <e@x.org>, d@x.org", "bcc": None}),
        (A, "y", {"to": [], "cc": None, "bcc": None}),
    ]
    kept, dropped = prepare(rows, step("expand-receivers"))
    assert kept == [(A, "x")] * 3 + [(A, "y")]
    assert dropped == {}


def test_the_mailbox_owner_is_the_most_frequent_sender_with_the_name() -> None:
    def mail(sender: str, path: str) -> tuple[str, str, dict[str, Any]]:
        return sender, path, {"file_name": path}

    rows = [
        mail("phillip.allen@enron.com", "allen-p/sent/1"),
        mail("mary.allen@home.com", "maildir/allen-p/inbox/2"),
        mail("Phillip.Allen@enron.com", "allen-p/sent/3"),
        mail("boss@enron.com", "allen-p/inbox/4"),
        mail("boss@enron.com", "allen-p/inbox/5"),
        mail("boss@enron.com", "allen-p/inbox/6"),
        mail("sean.crandall@enron.com", "crandell-s/sent/7"),
        mail("ann@enron.com", "loose.txt"),
    ]
    kept, dropped = prepare(rows, step("mailbox-owner"))
    assert kept == [
        ("phillip.allen@enron.com", "allen-p/sent/1"),
        ("phillip.allen@enron.com", "allen-p/sent/3"),
    ]
    assert dropped == {
        "mailbox-owner (across users): anything": 0,
        "mailbox-owner (across users): not sent by the mailbox's owner": 5,
        "mailbox-owner (across users): no owner in the path": 1,
    }


def test_repeated_ngrams() -> None:
    twenty = " ".join(map(str, range(20)))
    texts = [twenty, f"{twenty} {twenty}", f"{twenty} x {twenty[:-3]}", "a b a b"]
    kept, dropped = prepare([(A, text) for text in texts], step("repeated-ngrams"))
    assert [text for _, text in kept] == [texts[0], texts[2], texts[3]]
    assert dropped == {"repeated-ngrams: a 20-gram stands twice": 1}
    assert prepare([(A, "a b a b")], step("repeated-ngrams", words=2))[0] == []


@pytest.mark.parametrize(
    ("transform", "column", "user"),
    [
        ("base-domain", "https://news.bbc.co.uk/1/hi.stm", "bbc.co.uk"),
        ("base-domain", "http://WWW.Nytimes.com:80/x", "nytimes.com"),
        ("base-domain", "https://ann.blogspot.com/", "ann.blogspot.com"),
        ("base-domain", "http://10.0.0.1/x", "10.0.0.1"),
        ("base-domain", "https://bücher.de/x", "xn--bcher-kva.de"),
        ("base-domain", "https://xn--bcher-kva.de/x", "xn--bcher-kva.de"),
        ("base-domain", "https://ex\xadample\u3002com/", "example.com"),
        ("base-domain", f"https://{'ü' * 70}.de/", None),
        ("base-domain", "co.uk", None),
        ("base-domain", "http://[bad", None),
        ("email-address", "Ann Li <Ann.Li@x.org>", "ann.li@x.org"),
        ("email-address", "undisclosed sender", None),
        ("first-author", "A. Li (MIT), B. Wu and C. Xi", "A. Li"),
        ("first-author", "A.  Li and B. Wu", "A. Li"),
        ("lower-case", "ANN", "ann"),
    ],
)
def test_names_made_of_a_column(transform: str, column: str, user: str | None) -> None:
    kept, dropped = prepare([(column, "x")], step("user-name", transform=transform))
    assert kept == ([] if user is None else [(user, "x")])
    assert dropped == ({f"user-name: no {transform}": 1} if user is None else {})


def test_users_left_out_by_name() -> None:
    rows = [("AutoModerator", "x"), ("robot", "x"), (A, "x")]
    kept, dropped = prepare(rows, step("drop-users", containing=["bot", "mod"]))
    assert kept == [(A, "x")]
    assert dropped == {"drop-users: name of the user": 2}

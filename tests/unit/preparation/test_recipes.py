"""Recipes on schema-true samples: users, texts and drops as counted by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fedsim.config import parse_config
from fedsim.data.config import load_recipe, recipe_names
from fedsim.data.reading import records
from fedsim.errors import ConfigError
from tests.unit.preparation.recipe_samples import SAME_AS, SAMPLES, on_sample

EXPECTED: dict[str, tuple[dict[str | None, int], dict[str, int]]] = {
    "arxiv-abstracts": (
        {"Pavel Nadolsky": 3, "Louis Theran": 4, "David Callan": 2},
        {"null user": 1, "null text": 1, "min-examples: user has fewer than 2": 1},
    ),
    "aya": ({"u-ana": 3, "u-kofi": 2, "u-mei": 3}, {"empty text": 1}),
    "booksum": (
        {"27681": 3, "110": 3, "161": 2, "1232": 2},
        {"empty text": 1, "null text": 1},
    ),
    "cc-news": (
        {"riverpost.co.uk": 3, "hilltimes.com": 3, "bert.blogspot.com": 2, "10.1.2.3": 2},
        {"user-name: no base-domain": 1, "min-examples: user has fewer than 2": 2},
    ),
    "enron-chua": (
        {"phillip.allen@enron.com": 5, "john.arnold@enron.com": 2, "susan.bailey@enron.com": 4},
        {
            "null text": 1,
            "user-name: no email-address": 1,
            "drop-forwards: forwarded e-mail": 2,
            "repeated-ngrams: a 20-gram stands twice": 1,
        },
    ),
    "enron-kandpal": (
        {"phillip.allen@enron.com": 3, "john.arnold@enron.com": 2},
        {
            "empty text": 1,
            "mailbox-owner (across users): anything": 0,
            "mailbox-owner (across users): not sent by the mailbox's owner": 4,
            "exact-duplicates: same text of the same user": 1,
            "min-examples: user has fewer than 2": 1,
        },
    ),
    "enron-owners": (
        {"phillip.allen@enron.com": 3, "john.arnold@enron.com": 2, "susan.bailey@enron.com": 2},
        {
            "null text": 1,
            "user-name: no email-address": 1,
            "drop-forwards: forwarded e-mail": 2,
            "repeated-ngrams: a 20-gram stands twice": 1,
        },
    ),
    "open-assistant": ({"v-1": 3, "v-2": 3, "v-3": 2}, {}),
    "open-assistant-threads": ({"v-1": 3, "v-2": 3, "v-3": 2}, {}),
    "reddit": (
        {"slowtrain": 3, "valley_walker": 2},
        {
            "time-window: before 2015-09-01": 1,
            "time-window: from 2016-03-01 on": 1,
            "drop-users: name of the user": 3,
            "text-length: fewer than 190 words": 2,
            "min-examples: user has fewer than 2": 1,
        },
    ),
    "reddit-1600-words": (
        {"slowtrain": 3, "valley_walker": 1},
        {
            "drop-users: name of the user": 1,
            "user-words: user has fewer than 1600 words": 3,
            "user-words: beyond a user's first 1600 words": 2,
        },
    ),
    "stack-overflow": (
        {"00000001": 3, "00000042": 4, "00000108": 2, "00000777": 2},
        {"sort-by-time: no time": 1},
    ),
    "wildchat": ({"3f1a": 3, "9c0d": 2, "77b2": 2}, {"null user": 1}),
}


def test_every_recipe_has_its_sample_and_its_counts() -> None:
    assert recipe_names() == sorted(EXPECTED)
    assert {path.stem for path in SAMPLES.iterdir()} == set(EXPECTED) - set(SAME_AS)


@pytest.mark.parametrize("name", EXPECTED)
def test_users_texts_and_drops(name: str) -> None:
    read = records(parse_config({"data": on_sample(name)}).data)
    users = Counter(record.user for record in read)
    expected_users, expected_drops = EXPECTED[name]
    assert users == expected_users
    assert read.dropped == expected_drops


@pytest.mark.parametrize(
    ("name", "step", "settings"),
    [
        ("cc-news", "min-examples", {"count": 2}),
        ("reddit", "min-examples", {"count": 100}),
        ("reddit", "max-examples", {"count": 2000, "then": "drop-user"}),
        ("reddit-1600-words", "user-words", {"count": 1600}),
        ("enron-chua", "repeated-ngrams", {"words": 20}),
        ("enron-kandpal", "min-examples", {"count": 150}),
        ("arxiv-abstracts", "min-examples", {"count": 20}),
    ],
)
def test_the_papers_thresholds(name: str, step: str, settings: dict[str, Any]) -> None:
    steps = load_recipe(name).data["preparation"]
    assert {"step": step, **settings} in steps


def test_receivers_and_participants_own_what_others_wrote() -> None:
    owners: dict[str, list[tuple[str, ...]]] = {}
    for name in SAME_AS:
        read = records(parse_config({"data": on_sample(name)}).data)
        owners[name] = [record.owners for record in read]
    allen, arnold, bailey = (
        f"{name}@enron.com" for name in ("phillip.allen", "john.arnold", "susan.bailey")
    )
    assert owners["enron-owners"][0] == (arnold, bailey)
    assert any(allen in named for named in owners["enron-owners"])
    assert set(owners["open-assistant-threads"][0]) == {"v-1", "v-2", "v-3"}


def test_keys_that_are_given_win() -> None:
    data = parse_config({"data": {"recipe": "cc-news", "sequence_length": 64}}).data
    assert (data.sequence_length, data.user_column, data.held_out_limit) == (64, "url", 32)
    assert data.source == "vblagoje/cc_news"
    told = parse_config({"data": data.model_dump(exclude_none=True)}).data
    assert told == data


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"recipe": "cc-newz"}, "recipe = 'cc-newz': unknown; did you mean 'cc-news'?"),
        ({"recipe": "wombat"}, "recipe = 'wombat': unknown; known: arxiv-abstracts, aya"),
        (
            {"recipe": "stack-overflow"},
            "this data set is on no hub; give data.source a local copy: ",
        ),
        ({"recipe": 3}, "data.recipe = 3"),
    ],
)
def test_a_recipe_that_cannot_be_followed(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config({"data": given})
    assert complaint in str(raised.value)

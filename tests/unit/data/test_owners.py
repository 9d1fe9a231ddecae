"""Stores whose texts have several owners: names, graph, keys, split; and stores that have not."""

from __future__ import annotations

import json
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsim.config import parse_config
from fedsim.data.building import buckets
from fedsim.data.config import DataConfig
from fedsim.data.preparation.prepare import Prepared
from fedsim.data.reading import open_or_build, records
from fedsim.data.split import split_store
from fedsim.data.store import TokenStore
from fedsim.data.store.manifest import OWNERS, USERS
from fedsim.errors import ConfigError
from tests.conftest import write_rows
from tests.unit.data.data_samples import ByteModel, build, decode, graph_of

Triple = tuple[str, str, tuple[str, ...]]
RECORDS: list[tuple[str, str, tuple[str, ...] | None]] = [
    ("ann", "to bob and cy", ("bob", "cy")),
    ("bob", "alone", ()),
    ("ann", "to bob", ("bob", "bob", "ann")),
    ("dee", "to cy, long enough for pieces", ("cy",)),
    ("ann", "unknown owner", None),
    ("bob", "to all", ("ann", "cy", "dee")),
]


def triples(read: Prepared) -> list[Triple]:
    return [(record.user, record.text, record.owners) for record in read]


def _names(store: TokenStore) -> list[str]:
    files = [store.path / USERS, store.path / OWNERS]
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def _owners_by_text(store: TokenStore) -> dict[str, set[str]]:
    """Return the owners of each whole text, by the names in the files."""
    names, graph = _names(store), graph_of(store)
    found = {}
    for example in range(store.num_examples):
        counts, owners = graph.of(np.array([example]))
        assert counts.tolist() == [len(owners)] == [len(set(owners.tolist()))]
        text = decode([int(token) for token in store.example(example)])
        found[text] = {names[owner] for owner in owners.tolist()}
    return found


def test_the_graph_says_who_owns_what(tmp_path: Path) -> None:
    store = build(RECORDS, tmp_path / "store", co_owned=True, sequence_length=64)
    assert _owners_by_text(store) == {
        "to bob and cy": {"ann", "bob", "cy"},
        "to bob": {"ann", "bob"},
        "alone": {"bob"},
        "to all": {"ann", "bob", "cy", "dee"},
        "to cy, long enough for pieces": {"cy", "dee"},
    }
    assert _names(store) == ["ann", "bob", "dee", "cy"]  # users first, then who wrote nothing
    assert store.manifest["dropped"] == {"owners not all named": 1}
    assert store.manifest.get("owners") == {"owners": 4, "pairs": 7}
    graph = graph_of(store)
    for owner in range(graph.num_owners):
        mine = [e for e in range(store.num_examples) if owner in graph.of(np.array([e]))[1]]
        assert graph.examples_of(owner).tolist() == mine
    assert graph.degrees(np.arange(store.num_examples)).tolist() == [3, 4, 2, 3]


def test_pieces_of_a_text_have_its_owners(tmp_path: Path) -> None:
    store = build(RECORDS, tmp_path / "store", co_owned=True)
    names, graph = _names(store), graph_of(store)
    dee = store.user_examples(names.index("dee"))
    assert len(dee) > 2
    for example in dee:
        owners = graph.of(np.array([example]))[1]
        assert [names[owner] for owner in owners] == ["dee", "cy"]


def test_buckets_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    people = [f"p{n}" for n in range(30)]
    records: list[Triple] = [
        (str(rng.choice(people)), "x" * int(rng.integers(1, 30)), tuple(rng.choice(people, 3)))
        for _ in range(400)
    ]
    whole = build(records, tmp_path / "whole", co_owned=True)
    monkeypatch.setattr(buckets, "USERS", 7)
    monkeypatch.setattr(buckets, "BUFFERED", 64)
    monkeypatch.setattr("fedsim.data.building.build._BATCH_TEXTS", 20)
    many = build(records, tmp_path / "many", co_owned=True)
    assert whole.manifest["files"] == many.manifest["files"]


def test_keys_are_of_the_graph_and_not_of_the_texts(tmp_path: Path) -> None:
    """What a text says decides no draw: all that one owner co-owns is exchanged, keys stay."""
    other = [(u, "other words" if o and "cy" in o else t, o) for u, t, o in RECORDS]
    first = build(RECORDS, tmp_path / "a", co_owned=True, sequence_length=64)
    second = build(other, tmp_path / "b", co_owned=True, sequence_length=64)
    assert first.example_keys.tolist() == second.example_keys.tolist()
    assert len(set(first.example_keys.tolist())) == first.num_examples
    twice = build([*RECORDS, *RECORDS], tmp_path / "c", co_owned=True, sequence_length=64)
    assert len(set(twice.example_keys.tolist())) == 2 * first.num_examples


def test_with_one_owner_a_text_the_store_is_todays(tmp_path: Path) -> None:
    alone: list[Triple] = [
        ("ann", "one", ()),
        ("bob", "two", ("bob",)),
        ("ann", "three", ()),
    ]
    owned = build(alone, tmp_path / "owned", co_owned=True)
    plain = build([record[:2] for record in alone], tmp_path / "plain")
    assert owned.graph is None
    assert owned.manifest["files"] == plain.manifest["files"]
    assert "owners" not in plain.manifest
    assert owned.manifest.get("owners") == {"owners": 2, "pairs": 0}


@pytest.mark.parametrize("name", [OWNERS, "example_owners.npy"])
def test_a_damaged_graph_is_refused(name: str, tmp_path: Path) -> None:
    store = build(RECORDS, tmp_path / "store", co_owned=True)
    path = store.path / name
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        TokenStore.open(store.path).verify()


def _config(source: Path, **keys: object) -> DataConfig:
    base = {"source": str(source), "user_column": "who", "text_column": "said"}
    return parse_config({"data": {**base, "owners_column": "owners", **keys}}).data


def _write(path: Path, owners: list[object]) -> Path:
    rows = [{"who": "ann", "said": "words", "owners": value} for value in owners]
    return write_rows(path, rows)


def test_lists_are_read_name_by_name(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "rows.jsonl", [["bob", 7, 7.0, "007"], [], None, ["bob", None], ["b", ""]]
    )
    read = records(_config(path))
    assert [record.owners for record in read] == [("bob", "7", "007"), ()]
    assert read.dropped == {"owners not all named": 3}


def test_lists_in_other_formats(tmp_path: Path) -> None:
    import datasets  # noqa: PLC0415

    rows = {"who": ["ann", "bob"], "said": ["a", "b"], "owners": [["bob", "cy"], []]}
    datasets.Dataset.from_dict(rows).to_parquet(tmp_path / "rows.parquet")
    (tmp_path / "rows.csv").write_text('who,said,owners\nann,a,"bob; cy"\nbob,b,\n')
    expected = [("ann", "a", ("bob", "cy")), ("bob", "b", ())]
    assert triples(records(_config(tmp_path / "rows.parquet"))) == expected
    # An empty cell of a CSV is a null, and nobody knows whose the text is.
    read = triples(records(_config(tmp_path / "rows.csv", owners_separator=";")))
    assert read == expected[:1]


def test_owners_alone_are_enough(tmp_path: Path) -> None:
    """The first is then the user; a text of nobody, or of somebody unknown, is dropped."""
    rows = [{"said": "words", "to": to} for to in (["bob", "cy"], ["cy"], [], None, ["bob", None])]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    config = parse_config(
        {"data": {"source": str(path), "text_column": "said", "owners_column": "to"}}
    ).data
    read = records(config)
    assert triples(read) == [("bob", "words", ("bob", "cy")), ("cy", "words", ("cy",))]
    assert read.dropped == {"null user": 3}
    (tmp_path / "rows.csv").write_text("to,said\nbob; cy,words\n")
    config = config.model_copy(
        update={"source": str(tmp_path / "rows.csv"), "owners_separator": ";"}
    )
    assert triples(records(config)) == [("bob", "words", ("bob", "cy"))]
    (tmp_path / "rows.csv").write_text("to,said,speaker\nbob; cy,words,dee\n")
    with pytest.raises(ConfigError, match=r"a column .speaker. besides the owners"):
        triples(records(config))


def test_one_person_has_one_name_as_user_and_as_owner(tmp_path: Path) -> None:
    """Classes in a list are numbers on disk, and a name may have spaces around it."""
    import datasets  # noqa: PLC0415

    classes = datasets.ClassLabel(names=["ann", "bob"])
    features = datasets.Features(
        {"who": classes, "said": datasets.Value("string"), "owners": datasets.List(classes)}
    )
    rows = {"who": [0, 1], "said": ["a", "b"], "owners": [[1], [0, 1]]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "saved")
    read = triples(records(_config(tmp_path / "saved")))
    assert read == [("ann", "a", ("bob",)), ("bob", "b", ("ann", "bob"))]
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"who": "bob ", "said": "x", "owners": [" bob", "bob", "cy "]}))
    assert triples(records(_config(path))) == [("bob", "x", ("bob", "cy"))]


def test_a_number_has_one_name_whatever_its_type(tmp_path: Path) -> None:
    """In the users' column and in the owners', or the float is refused where it skips integers."""
    numbers = [
        (pa.decimal128(10, 2), Decimal("7777.00")),
        (pa.float32(), 7777.0),
        (pa.int64(), 7777),
    ]
    path = tmp_path / "rows.parquet"
    for (mine, user), (theirs, owner) in product(numbers, numbers):
        owners = pa.array([[owner]], pa.list_(theirs))
        table = {"who": pa.array([user], mine), "said": ["x"], "owners": owners}
        pq.write_table(pa.table(table), path)
        assert triples(records(_config(path))) == [("7777", "x", ("7777",))]


@pytest.mark.parametrize(
    "cell",
    [
        *(" ['bob', 'cy'] ", "('bob', 'cy')", "{bob, cy}", "{}", "'bob', 'cy'", "'bob'"),
    ],
)
def test_a_list_that_was_printed_is_no_list(cell: str, tmp_path: Path) -> None:
    """By Python, or by a database: of "{bob,cy}" the names would be "{bob" and "cy}"."""
    path = tmp_path / "rows.csv"
    path.write_text(f'who,said,owners\nann,a,"{cell}"\n')
    with pytest.raises(
        ConfigError, match=r"'owners': holds strings in brackets .* separated by ','"
    ):
        triples(records(_config(path, owners_separator=",")))


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        ("bob", "data.owners_column = 'owners': holds str values; wanted: lists of names"),
        ([["bob"]], "holds list values; wanted: strings or numbers"),
        ([2.0**53], "holds a float that may have lost digits"),
    ],
)
def test_a_column_that_is_no_list_of_names(owners: object, message: str, tmp_path: Path) -> None:
    path = _write(tmp_path / "rows.jsonl", [owners])
    with pytest.raises(ConfigError, match=message.split(";", maxsplit=1)[0]):
        triples(records(_config(path)))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"cutting": "join"}, 'cutting = "join": would make one example of texts with different'),
        ({"owners_column": None, "owners_separator": ";"}, "needs owners_column too"),
        (
            {"canaries": {"num_users": 2, "num_examples": 1, "shared_tokens": 1}},
            "canaries: do not work with",
        ),
    ],
)
def test_keys_that_do_not_go_together(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        _config(tmp_path / "rows.jsonl", **keys)


def test_a_given_store_and_the_config_agree(tmp_path: Path) -> None:
    """A store with owners is used with `owners_column` alone, one without them without it."""
    owned = build(RECORDS, tmp_path / "owned", co_owned=True, sequence_length=64)
    plain = build([("ann", "one")], tmp_path / "plain", sequence_length=64)
    model: Any = ByteModel()
    assert open_or_build(_config(owned.path), model).graph is not None
    with pytest.raises(
        ConfigError, match=r"data.owners_column = None: .* set data.owners_column to protect all"
    ):
        open_or_build(_config(owned.path, owners_column=None), model)
    with pytest.raises(ConfigError, match="has no owners of its texts"):
        open_or_build(_config(plain.path), model)


def test_nothing_of_a_held_out_owner_is_trained_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    people = [f"p{n}" for n in range(60)]
    records: list[Triple] = [
        (str(rng.choice(people[:30])), f"text {n}", tuple(rng.choice(people, 2)))
        for n in range(600)
    ]
    store = build(records, tmp_path / "store", co_owned=True, sequence_length=64)
    graph = graph_of(store)
    split = split_store(store, 5, 0.1, 0.3)
    out = set(split.held_out_owners.tolist())
    assert 8 < len(out) < 28
    assert {o for o in out if o < store.num_users} == set(split.held_out_users.tolist())
    assert any(owner >= store.num_users for owner in out)
    assert not out & set(graph.of(split.train_examples)[1].tolist())
    # Everything else that is not held out for utility is trained on.
    left = set(range(store.num_examples)) - set(split.train_examples.tolist())
    for example in left - set(split.held_out_examples.tolist()):
        assert out & set(graph.of(np.array([example]))[1].tolist())
    assert split.num_users == len(split.user_sizes)
    assert split.user_sizes.min() >= 1
    assert split.user_sizes.sum() == len(split.train_examples)

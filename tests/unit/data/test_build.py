"""Building a store: nothing lost, nothing twice, nothing half."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.data.building import buckets
from fedsim.data.building import build as build_module
from fedsim.data.config import DataConfig
from fedsim.data.preparation.prepare import Prepared
from fedsim.data.reading import open_or_build
from fedsim.data.sources.records import RawRecord
from fedsim.data.store import TokenStore
from fedsim.errors import ConfigError
from fedsim.language_model import LanguageModel
from tests.unit.data.data_samples import ByteModel, build, decode, encode

Records = list[tuple[str, str]]
some_records = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bob", "Ωμέγα", "with\nnewline"]), st.text("ab ☂", max_size=30)
    ),
    min_size=1,
    max_size=30,
)


def _by_user(records: Records) -> dict[str, list[str]]:
    """What the store should hold, from the records alone."""
    expected: dict[str, list[str]] = {}
    for user, text in records:
        if text.strip():
            expected.setdefault(user, []).append(text)
    return expected


def _open(config: DataConfig, model: ByteModel) -> TokenStore:
    return open_or_build(config, cast(LanguageModel, model))


def _texts(store: TokenStore, user: int) -> list[str]:
    """Put a user's pieces together again: each but a text's first repeats one token."""
    texts: list[list[int]] = []
    for index in store.user_examples(user).tolist():
        ids = store.example(index).tolist()
        assert 2 <= len(ids) <= store.manifest["sequence_length"]
        if ids[0] == 256:
            texts.append(ids)
        else:
            assert texts[-1][-1] == ids[0]
            texts[-1] += ids[1:]
    return [decode(ids) for ids in texts]


@settings(deadline=None, max_examples=40)
@given(
    records=some_records,
    sequence_length=st.integers(2, 12),
    batch=st.integers(1, 5),
    chunk=st.integers(1, 40),
    users=st.integers(1, 4),
)
def test_every_token_is_there_exactly_once(
    records: Records, sequence_length: int, batch: int, chunk: int, users: int
) -> None:
    expected = _by_user(records)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "_BATCH_TEXTS", batch)
        patch.setattr(buckets, "BUFFERED", chunk)
        patch.setattr(buckets, "USERS", users)
        destination = Path(folder) / "store"
        if not expected:
            with pytest.raises(ConfigError, match="no usable record"):
                build(records, destination, sequence_length=sequence_length)
            return
        store = build(records, destination, sequence_length=sequence_length)
        assert [_texts(store, user) for user in range(store.num_users)] == list(expected.values())
        assert store.num_tokens == store.lengths(np.arange(store.num_examples)).sum()
        dropped = sum(not text.strip() for _, text in records)
        assert store.manifest["dropped"] == ({"empty text": dropped} if dropped else {})


def test_truncate_keeps_the_beginning_and_counts_what_is_cut(tmp_path: Path) -> None:
    records = [("ann", "0123456789"), ("ann", "short")]
    store = build(records, tmp_path / "store", cutting="truncate")
    assert [store.example(index).tolist() for index in range(2)] == [
        [256, *b"0123456"],
        [256, *b"short", 257],
    ]
    assert store.manifest["dropped"] == {"tokens beyond sequence_length": 4}


def test_what_is_dropped_is_counted_by_reason(tmp_path: Path) -> None:
    records = [
        (None, "a"),
        (None, None),
        ("ann", None),
        ("ann", " \n"),
        ("bob", "1"),
        ("eve", "ok"),
    ]

    def short(texts: Sequence[str]) -> list[list[int]]:
        return [[1] if text == "1" else [1, 2] for text in texts]

    store = build(records, tmp_path / "store", encode=short)
    assert store.manifest["dropped"] == {
        "null user": 2,
        "null text": 1,
        "empty text": 1,
        "fewer than 2 tokens": 1,
    }
    assert (store.path / "users.jsonl").read_text() == '"eve"\n'


@pytest.mark.parametrize("wrong", [-1, 258])
def test_an_id_outside_the_vocabulary_is_no_token(tmp_path: Path, wrong: int) -> None:
    with pytest.raises(ValueError, match=f"encode gave the id {wrong}, the vocabulary has 258"):
        build([("ann", "x")], tmp_path / "store", encode=lambda texts: [[0, wrong]])
    assert list(tmp_path.iterdir()) == []


def test_a_failure_midway_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module, "_BATCH_TEXTS", 1)
    written: list[str] = []

    def failing(texts: Sequence[str]) -> list[list[int]]:
        if len(written) == 2:
            assert not (tmp_path / "store").exists()
            raise KeyboardInterrupt
        written.extend(texts)
        return encode(texts)

    with pytest.raises(KeyboardInterrupt):
        build([("ann", "a"), ("bob", "b"), ("eve", "c")], tmp_path / "store", encode=failing)
    assert written == ["a", "b"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("records", "loss_on", "message"),
    [
        ([("ann", ""), (None, "x")] * 2, "all", "2 empty text, 2 null user$"),
        ([("ann", "x")], "assistant", "examples without a token that counts; data.loss_on chooses"),
    ],
)
def test_no_usable_record_leaves_nothing(
    tmp_path: Path, records: Records, loss_on: str, message: str
) -> None:
    def context(texts: Sequence[str]) -> list[list[int]]:
        return [[-1, -2] for _ in texts]

    with pytest.raises(ConfigError, match=f"no usable record; dropped: .*{message}"):
        build(records, tmp_path / "store", loss_on=loss_on, encode=context)
    assert list(tmp_path.iterdir()) == []


def test_what_the_source_kept_back_is_counted(tmp_path: Path) -> None:
    prepared = Prepared([RawRecord("ann", "x")], ())
    prepared.dropped.update({"too old": 2, "a step that found nothing": 0})
    store = build(prepared, tmp_path / "store")
    assert store.manifest["dropped"] == prepared.dropped


def test_what_a_killed_build_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".store.build" / "scratch"
    left.mkdir(parents=True)
    (left / "0.tokens").write_bytes(b"half")
    (tmp_path / ".store.lock").touch()
    store = build([("ann", "x")], tmp_path / "store")
    assert store.num_tokens == 3
    assert list(tmp_path.iterdir()) == [store.path]


def test_an_existing_folder_is_not_touched(tmp_path: Path) -> None:
    build([("ann", "a")], tmp_path / "store")
    with pytest.raises(FileExistsError):
        build([("bob", "b")], tmp_path / "store")
    assert TokenStore.open(tmp_path / "store").example(0).tolist() == [256, ord("a"), 257]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataConfig:
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "data.csv"
    path.write_text("speaker,text,other\nann,hello,x\nbob,what a long story it is,y\n")
    return DataConfig(source=str(path), sequence_length=8)


def test_the_second_time_the_cache_answers(source: DataConfig) -> None:
    model = ByteModel()
    first = _open(source, model)
    assert _open(source, model).path == first.path
    assert model.num_encoded == 2


@pytest.mark.parametrize(
    "change", [{"sequence_length": 9}, {"cutting": "truncate"}, {"text_column": "other"}]
)
def test_whatever_changes_the_content_changes_the_store(
    source: DataConfig, change: dict[str, object]
) -> None:
    model = ByteModel()
    first = _open(source, model)
    assert _open(source.model_copy(update=change), model).path != first.path


def test_a_changed_file_is_read_again(source: DataConfig) -> None:
    model = ByteModel()
    assert _open(source, model).num_users == 2
    with Path(source.source).open("a") as file:
        file.write("eve,new,z\n")
    assert _open(source, model).num_users == 3


def test_a_store_as_source_is_opened(tmp_path: Path) -> None:
    built = build([("ann", "a")], tmp_path / "store", user_column="author")
    config = DataConfig(source=str(built.path), sequence_length=8)
    for same in (config, config.model_copy(update={"user_column": "author"})):
        assert _open(same, ByteModel()).path == built.path


@pytest.mark.parametrize(
    ("made_with", "message"),
    [
        ({"tokenizer_fingerprint": "words"}, "another tokenizer .*--tokenizer bytes"),
        ({"sequence_length": 9}, "data.sequence_length = 8: .* was made with 9"),
        ({"cutting": "truncate"}, "data.cutting = 'split': .* was made with 'truncate'"),
        ({"user_column": "household"}, "data.user_column = 'author': .* was made with 'household'"),
        (
            {"text_kind": {"text_column": "body"}},
            "data.text_column = 'other': .* was made with 'body'; set the key",
        ),
        (  # not that `loss_on` be set to "assistant", which is refused of a text column
            {"text_kind": {"messages_column": "body"}, "loss_on": "assistant"},
            "data.text_column = 'other': .* was made with None; set the key",
        ),
    ],
)
def test_a_store_that_does_not_fit_the_run(
    tmp_path: Path, made_with: dict[str, object], message: str
) -> None:
    built = build([("ann", "a")], tmp_path / "store", **made_with)
    source = str(built.path)
    config = DataConfig(source=source, user_column="author", text_column="other", sequence_length=8)
    with pytest.raises(ConfigError, match=message):
        _open(config, ByteModel())

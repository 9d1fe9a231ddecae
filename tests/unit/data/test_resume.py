"""A build that stopped goes on after its last whole segment, and ends with the same store."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.data.building import build as build_module
from fedsim.data.building import segments
from fedsim.data.store import TokenStore
from fedsim.errors import ConfigError
from tests.conftest import Patch
from tests.unit.data.data_samples import build, encode

RECORDS = [(f"user {index * 7 % 5}", "x" * (1 + index)) for index in range(40)]


class Stopped(BaseException):
    """What Ctrl-C and SIGTERM do to a build."""


def _until(stop: int | None) -> Iterator[tuple[str, str]]:
    for number, record in enumerate(RECORDS):
        if number == stop:
            raise Stopped
        yield record


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: Patch) -> None:
    monkeypatch.setattr(build_module, "_BATCH_TEXTS", 3)
    monkeypatch.setattr(segments, "SEGMENT_TOKENS", 100)


def _same(store: TokenStore, other: TokenStore) -> bool:
    return all(
        (other.path / path.name).read_bytes() == path.read_bytes() for path in store.path.iterdir()
    )


@settings(deadline=None, max_examples=25)
@given(
    stops=st.lists(st.integers(0, 39), max_size=4),
    cutting=st.sampled_from(["split", "truncate", "join"]),
)
def test_however_often_it_was_stopped(stops: list[int], cutting: str) -> None:
    with TemporaryDirectory() as folder:
        undisturbed = build(RECORDS, Path(folder) / "undisturbed", cutting=cutting)
        store = Path(folder) / "store"
        for stop in stops:
            with pytest.raises(Stopped):
                build(_until(stop), store, cutting=cutting, key="k")
            assert not store.exists()
        finished = build(_until(None), store, cutting=cutting, key="k")
        assert _same(undisturbed, finished)
        assert sorted(path.name for path in Path(folder).iterdir()) == ["store", "undisturbed"]


def test_what_is_done_is_not_tokenised_again(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        build(_until(30), tmp_path / "store", key="k")
    done = len(list((tmp_path / ".store.build" / "parts").glob("*.json")))
    assert done > 2
    encoded: list[str] = []

    def counted(texts: list[str]) -> list[list[int]]:
        encoded.extend(texts)
        return encode(texts)

    build(_until(None), tmp_path / "store", key="k", encode=counted)
    assert 10 <= len(encoded) < 40 - 3 * done + 3


def test_what_is_passed_over_is_no_part_of_the_speed(tmp_path: Path, monkeypatch: Patch) -> None:
    """A minute of passing over millions of texts looked as if tokenising had become slow."""
    with pytest.raises(Stopped):
        build(_until(30), tmp_path / "store", key="k")
    clock, lines = [0.0], list[str]()

    def slowly() -> Iterator[tuple[str, str]]:
        for number, record in enumerate(_until(None)):
            clock[0] += 1000.0 if number == 0 else 1.0
            yield record

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    build(slowly(), tmp_path / "store", key="k", num_workers=0, progress=lines.append)
    assert any(line.endswith(", 1 texts/s") for line in lines)


def test_the_parts_of_another_content_are_thrown_away(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        build(_until(30), tmp_path / "store", key="other")
    store = build(_until(None), tmp_path / "store", key="k")
    assert _same(build(RECORDS, tmp_path / "undisturbed"), store)


def test_a_segment_that_lost_bytes_is_made_again(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        build(_until(30), tmp_path / "store", key="k")
    part = tmp_path / ".store.build" / "parts" / "0001.tokens"
    os.truncate(part, part.stat().st_size - 1)
    store = build(_until(None), tmp_path / "store", key="k")
    assert _same(build(RECORDS, tmp_path / "undisturbed"), store)


def test_a_source_that_was_read_is_not_opened_again(tmp_path: Path, monkeypatch: Patch) -> None:
    def stopped(*arguments: object) -> None:
        raise Stopped

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(build_module, "write_merged", stopped)
        build(_until(None), tmp_path / "store", key="k")
    shutil.copytree(tmp_path / ".store.build", tmp_path / ".copy.build")
    store = build(_until(0), tmp_path / "store", key="k")  # would raise if it were read
    assert _same(build(RECORDS, tmp_path / "undisturbed"), store)
    (tmp_path / ".copy.build" / "parts" / "0002.users").unlink()
    assert _same(build(_until(None), tmp_path / "copy", key="k"), store)


def test_a_build_that_stops_before_its_first_segment_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        build(_until(3), tmp_path / "store", key="k")
    assert list(tmp_path.iterdir()) == []


def test_wrong_input_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no usable record; dropped: 50 empty text, 50 null user"):
        build([("ann", ""), (None, "x")] * 50, tmp_path / "store", key="k")
    assert list(tmp_path.iterdir()) == []


def test_reasons_that_no_record_has_are_not_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        build([("ann", "")] * 3, tmp_path / "store", loss_on="assistant")
    assert str(refused.value).endswith("no usable record; dropped: 3 empty text")


class _Prepared:
    """Records of which some are kept back on the way."""

    def __init__(self, stop: int | None) -> None:
        self.dropped = {"too old": 0, "a step that found nothing": 0}
        self._stop = stop

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for number, record in enumerate(_until(self._stop)):
            if number % 4:
                yield record
            else:
                self.dropped["too old"] += 1


def test_what_the_source_kept_back_is_counted_once(tmp_path: Path, monkeypatch: Patch) -> None:
    def stopped(*arguments: object) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        build(_Prepared(30), tmp_path / "store", key="k")
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(build_module, "write_merged", stopped)
        build(_Prepared(None), tmp_path / "store", key="k")
    store = build(_until(0), tmp_path / "store", key="k")
    assert store.manifest["dropped"] == {"a step that found nothing": 0, "too old": 10}
    assert store.num_examples == sum(-(-(1 + n + 1) // 7) for n in range(40) if n % 4)

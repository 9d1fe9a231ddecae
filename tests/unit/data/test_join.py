"""Joined texts: end to end, cut into examples of nearly equal length, nobody's with another's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.data.data_samples import build
from tests.unit.data.test_build import Records, _by_user, some_records


@settings(deadline=None, max_examples=30)
@given(records=some_records, sequence_length=st.integers(4, 12))
def test_join_lays_texts_end_to_end(records: Records, sequence_length: int) -> None:
    expected = _by_user(records)
    with TemporaryDirectory() as folder:
        if not expected:
            return
        store = build(
            records, Path(folder) / "store", cutting="join", sequence_length=sequence_length
        )
        for user, texts in enumerate(expected.values()):
            pieces = [store.example(index).tolist() for index in store.user_examples(user)]
            whole = [token for text in texts for token in [256, *text.encode(), 257]]
            assert [token for piece in pieces for token in piece] == whole
            sizes = [len(piece) for piece in pieces]
            assert max(sizes) <= sequence_length
            assert max(sizes) - min(sizes) <= 1
            assert len(pieces) == -(-len(whole) // sequence_length)


def test_join_puts_a_shared_begin_and_end_token_once_between_texts(tmp_path: Path) -> None:
    def same(texts: Sequence[str]) -> list[list[int]]:
        return [[0, *text.encode(), 0] for text in texts]

    records = [("ann", "a"), ("bob", "b"), ("ann", "c")]
    store = build(records, tmp_path / "store", encode=same, cutting="join")
    assert [store.example(index).tolist() for index in range(2)] == [
        [0, *b"a", 0, *b"c", 0],
        [0, *b"b", 0],
    ]

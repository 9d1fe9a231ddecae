"""A tokenizer that needs no model, and stores made with it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedsim.data.building.build import build_store
from fedsim.data.building.tokenise import BatchTokeniser
from fedsim.data.config import DataConfig
from fedsim.data.preparation.prepare import Prepared
from fedsim.data.rows import rows
from fedsim.data.sources.records import NO_COLUMNS, RawRecord
from fedsim.data.store import OwnerGraph, TokenStore

BEGIN, END = 256, 257
FIELDS = fields(BatchTokeniser)


def encode(texts: Sequence[str]) -> list[list[int]]:
    return [[BEGIN, *text.encode(), END] for text in texts]


def decode(ids: Sequence[int]) -> str:
    assert ids[0] == BEGIN and ids[-1] == END
    return bytes(ids[1:-1]).decode()


def pairs(config: DataConfig) -> list[tuple[str | None, str | None]]:
    """User and text of each row of a source, with nulls."""
    return [row[:2] for row in rows(config)]


def build(records: Iterable[Any], destination: Path, **changes: object) -> TokenStore:
    """Build a store of prepared records, or of (user, text) or (user, text, owners)."""
    if not isinstance(records, Prepared):
        raw = (RawRecord(user, text, NO_COLUMNS, *owners) for user, text, *owners in records)
        records = Prepared(raw, ())
    options: dict[str, Any] = {
        "encode": encode,
        "vocabulary_size": 258,
        "tokenizer_fingerprint": "bytes",
        "sequence_length": 8,
        "cutting": "split",
        "source": "a test",
        **changes,
    }
    parts = {field.name: options.pop(field.name) for field in FIELDS if field.name in options}
    return build_store(records, BatchTokeniser(**parts), destination, **options)


class ByteModel:
    """What a store asks of a `LanguageModel`; there is no network behind it."""

    name = "bytes"
    tokenizer_fingerprint = "bytes"
    vocabulary_size = 258

    def __init__(self) -> None:
        self.num_encoded = 0

    @property
    def encoder(self) -> Callable[[Sequence[str]], list[list[int]]]:
        return self.encode

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        self.num_encoded += len(texts)
        return encode(texts)


def graph_of(store: TokenStore) -> OwnerGraph:
    """Return who owns the texts of a store in which some have several owners."""
    assert store.graph is not None
    return store.graph

"""A damaged store is refused, in one line."""

import hashlib
import json
from pathlib import Path

import pytest

from fedsim.data.store import TokenStore
from fedsim.data.store.manifest import FILES, MANIFEST, file_facts, fingerprint
from fedsim.errors import ConfigError
from tests.unit.data.data_samples import build

EVERY = [*FILES, MANIFEST]
RECORDS = [("ann", "a"), ("bob", "bbb"), ("ann", "aa"), ("ann", "")]


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return build(RECORDS, tmp_path / "store")


def test_the_store_has_these_files(store: TokenStore) -> None:
    assert sorted(path.name for path in store.path.iterdir()) == sorted(EVERY)
    written = hashlib.sha256((store.path / "tokens.bin").read_bytes()).hexdigest()
    assert store.manifest["files"]["tokens.bin"] == {"bytes": 24, "sha256": written}


@pytest.mark.parametrize("name", EVERY)
def test_any_changed_file(store: TokenStore, name: str) -> None:
    path = store.path / name
    content = path.read_bytes()
    damaged = rf"damaged \({name}.*\); build it again|format version"
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(ConfigError, match=damaged):
            TokenStore.open(store.path).verify()
    path.write_bytes(content[:-2])
    with pytest.raises(ConfigError, match=damaged):
        TokenStore.open(store.path)
    path.unlink()
    with pytest.raises(ConfigError, match="not a token store" if name == MANIFEST else damaged):
        TokenStore.open(store.path)
    path.write_bytes(content)
    TokenStore.open(store.path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 3}, "format version 3, this fedsim reads 4; build it again"),
        ({"version": 5}, "format version 5, this fedsim reads 4; build it again"),
        ({"files": {"../../secret.json": {"bytes": 3, "sha256": ""}}}, "damaged"),
        ({"files": [1]}, "damaged"),
        ({"owners": 7, "version": 6}, "damaged"),
    ],
)
def test_a_foreign_manifest_whose_checksum_fits(
    store: TokenStore, changes: dict[str, object], message: str
) -> None:
    content = json.loads((store.path / MANIFEST).read_text()) | changes
    content["sha256"] = fingerprint(content)
    (store.path / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=message):
        TokenStore.open(store.path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"version": 4}', "\udcff"])
def test_a_manifest_that_is_none(store: TokenStore, text: str) -> None:
    (store.path / MANIFEST).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"damaged \(manifest\.json"):
        TokenStore.open(store.path)


def test_a_file_with_a_fitting_checksum_that_is_no_array(store: TokenStore) -> None:
    path = store.path / "user_offsets.npy"
    path.write_bytes(b"\x93NUMPY")
    content = json.loads((store.path / MANIFEST).read_text())
    content["files"][path.name] = file_facts(path)
    content["sha256"] = fingerprint(content)
    (store.path / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"damaged \(user_offsets\.npy"):
        TokenStore.open(store.path)

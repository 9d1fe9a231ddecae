"""A damaged store is refused, and the file is named."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedsim.data.store import TokenStore, integrity, manifest
from fedsim.errors import ConfigError
from fedsim.utils import terminal
from tests.conftest import Log
from tests.unit.data.data_samples import build

FILES = [
    "tokens.bin",
    "user_offsets.npy",
    "example_offsets.npy",
    "users.jsonl",
    "user_keys.npy",
    "example_keys.npy",
    "manifest.json",
]
RECORDS = [("ann", "a"), ("bob", "bbb"), ("ann", "aa"), ("ann", "")]


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return build(RECORDS, tmp_path / "store")


@pytest.fixture
def large(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> TokenStore:
    """A store that is treated as one of gigabytes, found whole once."""
    monkeypatch.setattr(integrity, "SMALL", 1)
    return TokenStore.open(store.path)


def test_the_store_has_these_files(store: TokenStore) -> None:
    assert sorted(path.name for path in store.path.iterdir()) == sorted(FILES)
    assert sorted([*store.manifest["files"], "manifest.json"]) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file(store: TokenStore, name: str) -> None:
    content = (store.path / name).read_bytes()
    (store.path / name).write_bytes(content[: len(content) - 2])
    with pytest.raises(ConfigError, match=f"damaged: {name}"):
        TokenStore.open(store.path)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(store: TokenStore, name: str) -> None:
    (store.path / name).unlink()
    expected = "not a token store" if name == "manifest.json" else f"damaged: {name}: No such file"
    with pytest.raises(ConfigError, match=expected):
        TokenStore.open(store.path)


@pytest.mark.parametrize("name", FILES)
def test_any_flipped_byte_of_any_file(store: TokenStore, name: str) -> None:
    path = store.path / name
    content = path.read_bytes()
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(ConfigError, match=rf"damaged: {name}|format version"):
            TokenStore.open(store.path)
    path.write_bytes(content)
    TokenStore.open(store.path)


@pytest.mark.parametrize("name", FILES[:-1])
def test_a_large_store_is_read_again_when_a_file_changed(large: TokenStore, name: str) -> None:
    path = large.path / name
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 128]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # the change time gives it away
    with pytest.raises(ConfigError, match=f"damaged: {name} has changed: SHA-256"):
        TokenStore.open(large.path)


def test_a_large_store_that_was_found_whole_is_not_read_again(
    large: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    digest = integrity._digest

    def counted(path: Path, advance: Callable[[int], None]) -> str:
        read.append(path)
        return digest(path, advance)

    monkeypatch.setattr(integrity, "_digest", counted)
    TokenStore.open(large.path)
    assert not read
    large.verify()
    assert len(read) == len(FILES) - 1


def test_to_read_every_byte_says_in_a_log_how_far_it_is(
    large: TokenStore, caplog: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "_QUIET", 0.0)
    with caplog.at_level(logging.INFO):
        large.verify()
    assert caplog.records[-1].message.startswith("checking the store: 100 % of ")


def test_a_store_is_read_when_it_comes_to_another_machine(
    large: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere").exists()
    TokenStore.open(large.path)
    assert len(list((tmp_path / "elsewhere" / "whole").iterdir())) == 1


def test_without_a_place_for_notes_it_is_read_each_time(
    large: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "file"))
    assert TokenStore.open(large.path).num_users == 2


@pytest.mark.parametrize("version", [1, 3, 5, True, None])
def test_another_format_version(store: TokenStore, version: object) -> None:
    _edit_manifest(store, version=version)
    message = f"version {version}, this fedsim reads 4; build it again"
    with pytest.raises(ConfigError, match=message):
        TokenStore.open(store.path)


def test_a_manifest_that_disagrees_with_the_files(store: TokenStore) -> None:
    _edit_manifest(store, tokens=13)
    with pytest.raises(ConfigError, match=r"damaged: manifest.json is not as it was written"):
        TokenStore.open(store.path)
    content = json.loads((store.path / "manifest.json").read_text())
    content["sha256"] = manifest.fingerprint(content)
    (store.path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"damaged: tokens.bin has 24 bytes for 13 tokens"):
        TokenStore.open(store.path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"version": 4}', "\udcff"])
def test_a_manifest_that_is_none(store: TokenStore, text: str) -> None:
    (store.path / "manifest.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"damaged: manifest\.json"):
        TokenStore.open(store.path)


def test_checksums_are_those_that_sha256sum_prints(store: TokenStore) -> None:
    written = store.manifest["files"]["user_offsets.npy"]
    np.save(store.path / "again.npy", np.array([0, 2, 3]))
    assert integrity.facts(store.path / "again.npy") == written


def _edit_manifest(store: TokenStore, **changes: object) -> None:
    content = json.loads((store.path / "manifest.json").read_text())
    (store.path / "manifest.json").write_text(json.dumps(content | changes))

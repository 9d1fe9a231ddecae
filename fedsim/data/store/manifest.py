"""The manifest of a token store: schema, reading, writing, and checks that files are unchanged.

Opening a store compares sizes. `fedsim data inspect STORE --verify` compares every byte, and so
detects disk errors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np

from fedsim.errors import ConfigError
from fedsim.utils.files import file_digest
from fedsim.utils.json_text import digest, read_json

FORMAT_VERSION = 4
CO_OWNED_VERSION = 6  # for sources with owners: an older fedsim must not open such stores

LossOn = Literal["all", "assistant", "completion"]
Cutting = Literal["split", "truncate", "join"]
MANIFEST = "manifest.json"
TOKENS = "tokens.bin"
EXAMPLE_OFFSETS = "example_offsets.npy"
USER_OFFSETS = "user_offsets.npy"
USERS = "users.jsonl"
USER_KEYS = "user_keys.npy"
EXAMPLE_KEYS = "example_keys.npy"
FILES = (TOKENS, EXAMPLE_OFFSETS, USER_OFFSETS, USERS, USER_KEYS, EXAMPLE_KEYS)
EXAMPLE_OWNER_OFFSETS = "example_owner_offsets.npy"
EXAMPLE_OWNERS = "example_owners.npy"
OWNER_KEYS = "owner_keys.npy"
OWNERS = "owners.jsonl"
GRAPH_FILES = (EXAMPLE_OWNER_OFFSETS, EXAMPLE_OWNERS, OWNER_KEYS, OWNERS)


class OwnerCounts(TypedDict):
    """Number of owners, including users, and of pairs of an example and a further owner.

    Without pairs, every example has one owner and the store has no graph.
    """

    owners: int
    pairs: int


class FileFacts(TypedDict):
    """The size of a file in bytes and its SHA-256 (hex)."""

    bytes: int
    sha256: str


class Manifest(TypedDict):
    """The content of manifest.json.

    Keys:
        version: format version.
        users: number of users, each with at least one example.
        examples: number of examples.
        tokens: number of token ids, including begin and end tokens.
        tokenizer_fingerprint: SHA-256 (hex) of the tokenizer that made the ids.
        sequence_length: maximum number of tokens of an example.
        cutting: treatment of longer texts, "split", "truncate" or "join".
        loss_on: tokens that count in the loss, "all", "assistant" or "completion".
        dropped: number of dropped items of the source, per reason.
        dtype: dtype of the stored tokens, see `narrowest`.
        source: the source of the records, in words.
        user_column: the user column of the source, if known.
        text_kind: the columns of the texts by their config keys, if known, and under
            "chat_template" the SHA-256 (hex) of the chat template, if one was used.
        owners: only if the source names further owners, see `OwnerCounts`.
        files: every other file of the store by its name.
        sha256: checksum of all of the above, see `fingerprint`.
    """

    version: int
    users: int
    examples: int
    tokens: int
    tokenizer_fingerprint: str
    sequence_length: int
    cutting: Cutting
    loss_on: LossOn
    dropped: dict[str, int]
    dtype: str
    source: str
    user_column: NotRequired[str]
    text_kind: NotRequired[dict[str, str]]
    owners: NotRequired[OwnerCounts]
    files: dict[str, FileFacts]
    sha256: str


def disk_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of tokens.bin: little-endian on every machine."""
    return np.dtype(name).newbyteorder("<")


def narrowest(vocabulary_size: int, loss_on: LossOn) -> str:
    """Return the narrowest dtype for ids, and for -1 - id of context tokens if there are any."""
    if loss_on == "all":
        return "uint16" if vocabulary_size <= 1 << 16 else "uint32"
    return "int16" if vocabulary_size <= 1 << 15 else "int32"


def fingerprint(manifest: Manifest) -> str:
    """Return the SHA-256 (hex) of the manifest without `sha256`, as JSON with sorted keys."""
    others = {key: value for key, value in manifest.items() if key != "sha256"}
    return digest(others)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json with its fingerprint."""
    complete = {**manifest, "sha256": fingerprint(manifest)}
    (folder / MANIFEST).write_text(json.dumps(complete, indent=2) + "\n", encoding="utf-8")


def is_store(path: Path) -> bool:
    """Return whether the folder looks like a token store, of any version, damaged or not."""
    others = (path / name for name in ("tokens.bin", "user_offsets.npy"))
    return (path / MANIFEST).is_file() and any(other.is_file() for other in others)


def read_manifest(folder: Path) -> Manifest:
    """Read manifest.json.

    Raises:
        ConfigError: the folder is not a store, or the store has another version or is damaged.
    """
    if not (folder / MANIFEST).is_file():
        raise ConfigError(
            f"store {str(folder)!r}: not a token store; build one with fedsim data build"
        )
    try:
        manifest: Manifest = read_json(folder / MANIFEST)
        wanted = CO_OWNED_VERSION if "owners" in manifest else FORMAT_VERSION
        if manifest["version"] != wanted:
            raise ConfigError(
                f"store {str(folder)!r}: format version {manifest['version']!r}, this fedsim reads "
                f"{wanted}; build it again"
            )
        graph = GRAPH_FILES if manifest.get("owners", {"pairs": 0})["pairs"] else ()
        whole = set(manifest["files"]) == {*FILES, *graph}  # so no name leads out of the folder
        if not whole or fingerprint(manifest) != manifest["sha256"]:
            raise ValueError("its checksum differs")
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise damaged(folder, f"{MANIFEST}: {error}") from error
    return manifest


def damaged(folder: Path, what: str) -> ConfigError:
    """Return the error for a damaged store."""
    return ConfigError(f"store {str(folder)!r}: damaged ({what}); build it again")


def file_facts(path: Path) -> FileFacts:
    """Return the size and checksum of a file."""
    return FileFacts(bytes=path.stat().st_size, sha256=file_digest(path))


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Raise `ConfigError` if a file is missing or has another size than in the manifest."""
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != expected["bytes"]:
            raise damaged(folder, f"{name} is missing or was cut short")


def verify(folder: Path, manifest: Manifest) -> None:
    """Raise `ConfigError` if the checksum of a file differs from the manifest."""
    for name, expected in manifest["files"].items():
        if file_facts(folder / name) != expected:
            raise damaged(folder, f"{name} has changed since it was written")

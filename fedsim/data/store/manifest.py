"""The manifest of a token store: schema, reading, writing, and the error of a damaged store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np

from fedsim.errors import ConfigError
from fedsim.utils.json_text import digest, read_json

FORMAT_VERSION = 4
CO_OWNED_VERSION = 6  # of stores whose source names owners: an older fedsim must not open them

LossOn = Literal["all", "assistant", "completion"]
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
    """How many owners there are, users counted, and pairs of an example and another than its user.

    Without a pair, every example has one owner, and the store no graph.
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
        version: of the format.
        users: number of users, each with at least one example.
        examples: number of examples.
        tokens: number of token ids, begin and end tokens counted.
        tokenizer_fingerprint: SHA-256 (hex) of the tokenizer that made the ids.
        sequence_length: most tokens an example may have.
        cutting: what happened to longer texts, "split", "truncate" or "join".
        loss_on: which tokens count in a loss, "all", "assistant" or "completion".
        dropped: reason to count, for everything in the source that is not in the store.
        dtype: of the stored tokens, see `narrowest`.
        source: where the records came from, in words.
        user_column: what the source's users are named by, where that is known.
        text_kind: where that is known, the columns of its texts by their keys in a config, and
            under "chat_template" the SHA-256 (hex) of the template, if they went through one.
        owners: only where the source names owners beside users, see `OwnerCounts`.
        files: every other file of the store by its name.
        sha256: of all of the above, see `fingerprint`.
    """

    version: int
    users: int
    examples: int
    tokens: int
    tokenizer_fingerprint: str
    sequence_length: int
    cutting: str
    loss_on: str
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
    """Return the narrowest dtype for ids and, unless all count, for -1 - id of context tokens."""
    if loss_on == "all":
        return "uint16" if vocabulary_size <= 1 << 16 else "uint32"
    return "int16" if vocabulary_size <= 1 << 15 else "int32"


def fingerprint(manifest: Manifest) -> str:
    """Return the SHA-256 (hex) of the manifest without its own: of JSON with sorted keys."""
    others = {key: value for key, value in manifest.items() if key != "sha256"}
    return digest(others)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json, with its fingerprint put in."""
    complete = {**manifest, "sha256": fingerprint(manifest)}
    (folder / MANIFEST).write_text(json.dumps(complete, indent=2) + "\n", encoding="utf-8")


def is_store(path: Path) -> bool:
    """Return whether the folder looks like a token store, of any version, damaged or not."""
    others = (path / name for name in ("tokens.bin", "user_offsets.npy"))
    return (path / MANIFEST).is_file() and any(other.is_file() for other in others)


def read_manifest(folder: Path) -> Manifest:
    """Read manifest.json.

    Raises:
        ConfigError: no store, of another version, or damaged.
    """
    if not (folder / MANIFEST).is_file():
        raise ConfigError(
            f"store {str(folder)!r}: not a token store; make one with fedsim data build"
        )
    try:
        manifest: Manifest = read_json(folder / MANIFEST)
        wanted = CO_OWNED_VERSION if "owners" in manifest else FORMAT_VERSION
        if manifest["version"] != wanted:
            raise ConfigError(
                f"store {str(folder)!r}: format version {manifest['version']!r}, this fedsim reads "
                f"{wanted}; build it anew"
            )
        graph = GRAPH_FILES if manifest.get("owners", {"pairs": 0})["pairs"] else ()
        whole = set(manifest["files"]) == {*FILES, *graph}  # so no name leads out of the folder
        if not whole or fingerprint(manifest) != manifest["sha256"]:
            raise ValueError("its checksum is another")
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise damaged(folder, f"{MANIFEST}: {error}") from error
    return manifest


def damaged(folder: Path, what: str) -> ConfigError:
    """Return the error of a store that is not whole."""
    return ConfigError(f"store {str(folder)!r}: damaged ({what}); build it anew")

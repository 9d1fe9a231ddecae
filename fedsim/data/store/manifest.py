"""The manifest of a token store: schema, reading, writing, and the error of a damaged store."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, cast, get_args

import numpy as np

from fedsim.errors import ConfigError
from fedsim.utils.json_text import digest, is_count, read_json

FORMAT_VERSION = 4
CO_OWNED_VERSION = 5  # of stores whose source names owners: an older fedsim must not open them

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
OWNER_EXAMPLE_OFFSETS = "owner_example_offsets.npy"
OWNER_EXAMPLES = "owner_examples.npy"
OWNER_KEYS = "owner_keys.npy"
OWNERS = "owners.jsonl"
GRAPH_FILES = (
    EXAMPLE_OWNER_OFFSETS,
    EXAMPLE_OWNERS,
    OWNER_EXAMPLE_OFFSETS,
    OWNER_EXAMPLES,
    OWNER_KEYS,
    OWNERS,
)


def _is_size(value: object) -> bool:
    return is_count(value) and value != 0


def _are_files(value: object) -> bool:
    """Whether they are exactly a store's files, with their facts: no path leads outside."""
    return (
        isinstance(value, dict)
        and value.keys() in (set(FILES), {*FILES, *GRAPH_FILES})
        and all(isinstance(facts, dict) and facts.keys() == _FACTS for facts in value.values())
        and all(is_count(facts["bytes"]) for facts in value.values())
        and all(isinstance(facts["sha256"], str) for facts in value.values())
    )


_FACTS = {"bytes", "sha256"}
_FITS: Mapping[str, Callable[[Any], bool]] = {
    "users": _is_size,
    "examples": _is_size,
    "tokens": _is_size,
    "tokenizer_fingerprint": lambda value: isinstance(value, str),
    "sequence_length": _is_size,
    "cutting": lambda value: value in ("split", "truncate", "join"),
    "loss_on": lambda value: value in get_args(LossOn),
    "dropped": lambda value: isinstance(value, dict) and all(map(is_count, value.values())),
    "dtype": lambda value: value in ("uint16", "uint32", "int16", "int32"),
    "source": lambda value: isinstance(value, str),
    "files": _are_files,
}


_OPTIONAL = {"owners", "text_kind", "user_column"}


def _are_owners(content: Mapping[str, Any]) -> bool:
    """Whether the numbers of owners and pairs, if there are any, go with the files."""
    owners, has_graph = content.get("owners"), OWNERS in content["files"]
    if owners is None:
        return not has_graph
    return (
        isinstance(owners, dict)
        and owners.keys() == OwnerCounts.__annotations__.keys()
        and all(map(is_count, owners.values()))
        and owners["owners"] >= content["users"]
        and has_graph == (owners["pairs"] > 0)
    )


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
        ConfigError: no store, of another version, or not as it was written.
    """
    if not (folder / MANIFEST).is_file():
        raise ConfigError(
            f"store {str(folder)!r}: not a token store; make one with fedsim data build"
        )
    try:
        content = read_json(folder / MANIFEST)
        version, keys = content["version"], set(content)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise damaged(folder, f"{MANIFEST}: {error!r}") from error
    wanted = CO_OWNED_VERSION if "owners" in keys else FORMAT_VERSION
    if version != wanted or type(version) is not int:
        raise ConfigError(
            f"store {str(folder)!r}: format version {version!r}, this fedsim reads "
            f"{wanted}; build it again"
        )
    if missing := set(Manifest.__annotations__) - _OPTIONAL - keys:
        raise damaged(folder, f"{MANIFEST} lacks {', '.join(sorted(missing))}")
    manifest = cast(Manifest, content)
    if wrong := [key for key, fits in _FITS.items() if not fits(content[key])]:
        raise damaged(folder, f"{MANIFEST}: {', '.join(wrong)} cannot be so")
    kind = content.get("text_kind", {})
    if not (isinstance(kind, dict) and all(isinstance(value, str) for value in kind.values())):
        raise damaged(folder, f"{MANIFEST}: text_kind cannot be so")
    if not _are_owners(content):
        raise damaged(folder, f"{MANIFEST}: owners cannot be so")
    if fingerprint(manifest) != manifest["sha256"]:
        raise damaged(folder, f"{MANIFEST} is not as it was written")
    return manifest


def damaged(folder: Path, what: str) -> ConfigError:
    """Return the error of a store that is not whole."""
    return ConfigError(f"store {str(folder)!r}: damaged: {what}; delete it and build it again")

"""Second half of a build: merge sorted segments into the store's files, some users at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedsim.data.building.segments import Segments, ordered
from fedsim.data.store import Indices, ranks
from fedsim.data.store import manifest as layout
from fedsim.data.store.keys import example_keys, user_keys
from fedsim.data.store.rows import bounds_of, offsets_of

CHUNK_TOKENS = 1 << 22


def write_merged(segments: Segments, folder: Path, joined: int | None) -> tuple[int, int]:
    """Write tokens, offsets and names by user; return the numbers of examples and of tokens.

    In memory: `CHUNK_TOKENS`, whatever the size of the source and of its largest user, and a few
    numbers a user.

    Args:
        segments: all that was read.
        folder: where the files go.
        joined: where texts are joined, most tokens of an example: the tokens stay as they are, and
            only the offsets of examples change. Else None.
    """
    examples, tokens = _sizes_of_users(segments)
    bounds = bounds_of(offsets_of(tokens), CHUNK_TOKENS)
    starts = starts_in_segments(segments, bounds, "lengths")
    if joined is not None:
        examples = -(-tokens // joined)  # as few as can be
    with (folder / layout.USERS).open("w", encoding="utf-8") as names:
        names.writelines(json.dumps(name) + "\n" for name in segments.users)
    user_offsets = offsets_of(examples)
    np.save(folder / layout.USER_OFFSETS, user_offsets)
    num_examples, num_tokens = int(user_offsets[-1]), int(tokens.sum())
    with (
        (folder / layout.TOKENS).open("wb") as token_file,
        (folder / layout.EXAMPLE_OFFSETS).open("wb") as offset_file,
    ):
        begin_offsets(offset_file, num_examples + 1)
        done = 0
        for chunk, (first, last) in enumerate(pairwise(bounds)):
            alone = last - first == 1
            lengths = _write_chunk(segments, starts[:, chunk : chunk + 2], token_file, alone=alone)
            if joined is not None:
                lengths = _equal_parts(tokens[first:last], examples[first:last])
            ends = done + np.cumsum(lengths)
            offset_file.write(ends.astype("<i8").tobytes())
            done = int(ends[-1])
    return num_examples, num_tokens


def begin_offsets(file: BinaryIO, size: int) -> None:
    """Write what `np.save` writes before an array of that many offsets, and the first of them."""
    begin_array(file, size, "<i8")
    file.write(np.zeros(1, "<i8").tobytes())


def begin_array(file: BinaryIO, size: int, dtype: str) -> None:
    """Write what `np.save` writes before a row of that length and type."""
    header = {"descr": dtype, "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(file, header)


def write_keys(folder: Path, dtype: str, num_users: int) -> None:
    """Write the keys of users and examples beside the tokens, offsets and names of a new store.

    Held in memory: a number a user, and what `example_keys` holds.
    """
    np.save(folder / layout.USER_KEYS, user_keys(folder / layout.USERS, num_users))
    tokens = np.asarray(np.memmap(folder / layout.TOKENS, layout.disk_dtype(dtype), mode="r"))
    offsets = np.load(folder / layout.EXAMPLE_OFFSETS, mmap_mode="r")
    with (folder / layout.EXAMPLE_KEYS).open("wb") as file:
        begin_array(file, len(offsets) - 1, "<u8")
        for keys in example_keys(tokens, offsets):
            file.write(keys.astype("<u8").tobytes())


def _sizes_of_users(segments: Segments) -> tuple[Indices, Indices]:
    """Return per user the number of examples and of tokens, int64."""
    examples = np.zeros(len(segments.users), np.int64)
    tokens = np.zeros(len(segments.users), np.int64)
    for segment, head in enumerate(segments.heads):
        users = segments.part(segment, "users", 0, head["examples"])
        lengths = segments.part(segment, "lengths", 0, head["examples"])
        examples += np.bincount(users, minlength=len(examples))
        # Counted in float64, which is exact far beyond what a segment holds.
        tokens += np.bincount(users, lengths, minlength=len(tokens)).astype(np.int64)
    return examples, tokens


def starts_in_segments(segments: Segments, bounds: list[int], kind: str) -> Indices:
    """Return (segments, bounds, 2) int64: the first example and item from each bound on.

    Args:
        segments: each sorted by user, so that a chunk of users is one slice of each.
        bounds: the first user of each chunk, and, last, their number.
        kind: the file that says how many items an example has: "lengths" of tokens, or "others".
    """
    starts = np.zeros((len(segments.heads), len(bounds), 2), np.int64)
    for segment, head in enumerate(segments.heads):
        users = segments.part(segment, "users", 0, head["examples"])
        counts = segments.part(segment, kind, 0, head["examples"])
        examples = np.searchsorted(users, np.array(bounds, "u4"))
        starts[segment, :, 0] = examples
        starts[segment, :, 1] = offsets_of(counts)[examples]
    return starts


def _write_chunk(segments: Segments, starts: Indices, file: BinaryIO, *, alone: bool) -> Indices:
    """Write the tokens of a chunk's users in their order; return the lengths of their examples."""
    parts = list(_parts(segments, starts))
    lengths = np.concatenate(
        [segments.part(number, "lengths", *examples) for number, examples, _ in parts]
    ).astype(np.int64)
    pieces = (segments.part(number, "tokens", *tokens) for number, _, tokens in parts)
    if alone:  # in order already, and perhaps too many to hold
        for piece in pieces:
            file.write(piece.tobytes())
        return lengths
    users = np.concatenate(
        [segments.part(number, "users", *examples) for number, examples, _ in parts]
    )
    order = np.argsort(users, kind="stable")  # stable: an earlier segment's examples stay first
    for piece in ordered(np.concatenate(list(pieces)), lengths, order):
        file.write(piece.tobytes())
    return lengths[order]


def _parts(
    segments: Segments, starts: Indices
) -> Iterator[tuple[int, tuple[int, int], tuple[int, int]]]:
    """Yield segment, its first and last example, its first and last token, where it has any."""
    for number in range(len(segments.heads)):
        (first, first_token), (last, last_token) = starts[number].tolist()
        if last > first:
            yield number, (first, last), (first_token, last_token)


def _equal_parts(sizes: Indices, pieces: Indices) -> Indices:
    """Return the lengths of so many pieces of each size, which differ by one at the most."""
    whole, count = np.repeat(sizes, pieces), np.repeat(pieces, pieces)
    piece = ranks(pieces)
    lengths: Indices = (piece + 1) * whole // count - piece * whole // count
    return lengths

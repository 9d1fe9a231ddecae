"""Build a token store from (user, text) records: streaming, in parallel, in bounded memory.

First (`tokenise`, `workers`, `segments`) batches of texts become pieces of token ids, which are
written in segments as they come. Then (`merge`) the segments become the files of the store. All of
it happens in a hidden folder beside the destination, which is renamed at the end (`build_folder`):
a store is whole or it is not there. A build that was killed goes on after its last whole segment.
The result is the same, byte by byte, whatever the number of processes and of interruptions.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fedsim.data.building.build_folder import build_folder
from fedsim.data.building.merge import write_keys, write_merged
from fedsim.data.building.owners import write_owners
from fedsim.data.building.segments import Segments
from fedsim.data.building.tokenise import UNCOUNTED, BatchTokeniser, Cutting, Encode, Record
from fedsim.data.building.workers import tokenise_batches
from fedsim.data.store import TokenStore, integrity
from fedsim.data.store.manifest import (
    CO_OWNED_VERSION,
    FORMAT_VERSION,
    LossOn,
    Manifest,
    write_manifest,
)
from fedsim.errors import ConfigError
from fedsim.utils.terminal import every_half_minute, is_terminal, progress_console

logger = logging.getLogger("fedsim")

ReportLine = Callable[[str], None]

_BATCH_TEXTS = 1000
_BATCH_CHARACTERS = 1 << 20


def build_store(
    records: Iterable[Record],
    *,
    encode: Encode,
    vocabulary_size: int,
    tokenizer_fingerprint: str,
    sequence_length: int,
    cutting: Cutting,
    loss_on: LossOn = "all",
    co_owned: bool = False,
    whole: bool = False,
    destination: Path,
    source: str,
    user_column: str | None = None,
    text_kind: Mapping[str, str] | None = None,
    key: str | None = None,
    num_workers: int | None = None,
    progress: ReportLine | None = None,
) -> TokenStore:
    """Write a store of these records, users in order of first appearance, texts in order.

    Args:
        records: (user, text), or (user, text, owners); a record with a null or an empty text is
            dropped, counted. What the iterable itself dropped, it may count in a mapping `dropped`,
            reason to number.
        encode: texts to their token ids, -1 - id for context tokens; used in other processes if it
            can be pickled.
        vocabulary_size: every id is below it.
        tokenizer_fingerprint: of the tokenizer behind `encode`, hex.
        sequence_length: most ids an example may have, at least 2.
        cutting: "split" a longer text into pieces that overlap in one token, or "truncate" it;
            or "join" a user's texts end to end and cut them into examples of nearly equal length.
        loss_on: which tokens count; "all" where `encode` gives no context tokens. An example in
            which none counts is dropped, counted; not with "join", where its loss is 0.
        co_owned: whether records name owners beside their user; not with "join".
        whole: texts are the examples of a store of this `cutting`: none is cut, joined or dropped.
        destination: a folder that does not exist yet. Its parent receives a hidden folder.
        source: the source in words, for the manifest.
        user_column: of the source, for the manifest; None where it has none.
        text_kind: what its texts are, for the manifest; see `Manifest`.
        key: of everything the content depends on. What a build of the same key and destination
            left behind when it was killed is used again: `records` have to be the same.
        num_workers: processes that tokenise, 0 for this one; None for one a CPU, at most 8, once
            there are more than 20 batches.
        progress: called after each batch with a line on how far the build is.

    Raises:
        ConfigError: not one usable record.
        FileExistsError: `destination` exists; also when another process made it meanwhile.
        ValueError: `encode` gave an id outside the vocabulary.
    """
    tokeniser = BatchTokeniser(encode, vocabulary_size, sequence_length, cutting, loss_on, whole)
    report = progress or (lambda line: None)
    with build_folder(destination, key) as place:
        segments = Segments(place.parts, tokeniser, co_owned=co_owned)
        if not segments.is_read:
            _read_all(records, segments, tokeniser, num_workers, report)
        if not segments.users:
            counted = ((count, why) for why, count in segments.dropped.items() if count)
            reasons = ", ".join(f"{count} {why}" for count, why in counted)
            by_role = (
                "; data.loss_on says which do, of messages by their role: with 'assistant' those "
                "that have just this role, with 'all' every message"
            )
            hint = by_role if segments.dropped[UNCOUNTED] else ""
            raise ConfigError(
                f"data.source = {source!r}: no usable record; dropped: {reasons or 'none'}{hint}"
            )
        report(f"writing: {len(segments.users):,} users")
        joined = sequence_length if tokeniser.joins else None
        num_examples, num_tokens = write_merged(segments, place.result, joined)
        write_keys(place.result, tokeniser.dtype, len(segments.users))
        owners = write_owners(segments, place.result) if co_owned else None
        report("computing checksums")
        manifest = Manifest(
            version=CO_OWNED_VERSION if co_owned else FORMAT_VERSION,
            users=len(segments.users),
            examples=num_examples,
            tokens=num_tokens,
            tokenizer_fingerprint=tokenizer_fingerprint,
            sequence_length=sequence_length,
            cutting=cutting,
            loss_on=loss_on,
            dropped=dict(sorted(segments.dropped.items())),
            dtype=tokeniser.dtype,
            source=source,
            files={path.name: integrity.facts(path) for path in sorted(place.result.iterdir())},
            sha256="",
        )
        if owners is not None:
            manifest["owners"] = owners
        if user_column is not None:
            manifest["user_column"] = user_column
        if text_kind is not None:
            manifest["text_kind"] = dict(text_kind)
        write_manifest(place.result, manifest)
    integrity.note_whole(destination)
    return TokenStore.open(destination)


@contextmanager
def terminal_progress() -> Iterator[ReportLine]:
    """Show a progress line on standard error; yield its setter.

    Where that is no terminal, a line is logged every half minute.
    """
    if not is_terminal(sys.stderr):
        yield every_half_minute("building the store (no ε covers these numbers)")
        return
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description} (no ε covers these numbers)"),
        TimeElapsedColumn(),
        console=progress_console(),
        transient=True,
    ) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda line: bar.update(task, description=line)


def _read_all(
    records: Iterable[Record],
    segments: Segments,
    tokeniser: BatchTokeniser,
    num_workers: int | None,
    report: ReportLine,
) -> None:
    before = segments.num_records
    if before:
        report(f"passing over {before:,} texts that are done")
    rest = _batches(islice(records, before, None))
    first: tuple[int, float] | None = None  # what was passed over, and read for it, is no speed
    for batch in tokenise_batches(rest, tokeniser, num_workers):
        segments.add(batch)
        first = first or (segments.num_records, time.monotonic())
        rate = (segments.num_records - first[0]) / max(time.monotonic() - first[1], 1e-3)
        report(
            f"tokenising: {segments.num_records:,} texts of {len(segments.users):,} users, "
            f"{rate:,.0f} texts/s"
        )
    segments.finish(getattr(records, "dropped", {}))


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield a thousand records at a time, or fewer where they are long."""
    batch: list[Record] = []
    characters = 0
    for record in records:
        batch.append(record)
        characters += len(record[1] or "")
        if len(batch) >= _BATCH_TEXTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch

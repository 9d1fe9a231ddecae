"""From (user, text) records to a token store: streaming, by several processes, in bounded memory.

First (`arrivals`, `workers`, `segments`) batches of texts become pieces of token ids, which are
written in segments as they come. Then (`merge`) the segments become the files of the store. All of
it happens in a hidden folder beside the destination, which is renamed at the end (`workshop`): a
store is whole or it is not there. A build that was killed goes on after its last whole segment.
The result is the same, byte by byte, whatever the number of processes and of interruptions.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fedsim.data import reading as sources
from fedsim.data.building.arrivals import Cutting, Encode, Record, Tokenising
from fedsim.data.building.merge import write_keys, write_merged
from fedsim.data.building.segments import Segments
from fedsim.data.building.workers import tokenised
from fedsim.data.building.workshop import workshop
from fedsim.data.config import DataConfig
from fedsim.data.store import TokenStore, integrity
from fedsim.data.store.manifest import FORMAT_VERSION, Manifest, is_store, write_manifest
from fedsim.errors import ConfigError
from fedsim.utils import files as paths

if TYPE_CHECKING:  # torch takes seconds to import, and nothing here computes with it
    from fedsim.language_model import LanguageModel

Say = Callable[[str], None]

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
    destination: Path,
    source: str,
    key: str | None = None,
    num_workers: int | None = None,
    progress: Say | None = None,
) -> TokenStore:
    """Write a store of these records, users in order of first appearance, texts in order.

    Args:
        records: (user, text); a record with a null or an empty text is dropped, counted. What
            the iterable itself kept back, it may count in a mapping `dropped`, reason to number.
        encode: texts to their token ids; used in other processes if it can be pickled.
        vocabulary_size: every id is below it.
        tokenizer_fingerprint: of the tokenizer behind `encode`, hex.
        sequence_length: most ids an example may have, at least 2.
        cutting: "split" a longer text into pieces that overlap in one token, or "truncate" it;
            or "join" a user's texts end to end and cut them into examples of nearly equal length.
        destination: a folder that does not exist yet. Its parent receives a hidden folder.
        source: the source in words, for the manifest.
        key: of everything the content depends on. What a build of the same key and destination
            left behind when it was killed is used again: `records` have to be the same.
        num_workers: processes that tokenise, 0 for this one; None for as many as there are CPUs
            (at most 8) where there is much to do.
        progress: called now and then with a line that says how far it is.

    Raises:
        ConfigError: not one usable record.
        FileExistsError: `destination` exists; also when another process made it meanwhile.
        ValueError: `encode` gave an id outside the vocabulary.
    """
    tokenising = Tokenising(encode, vocabulary_size, sequence_length, cutting)
    say = progress or (lambda line: None)
    with workshop(destination, key) as place:
        segments = Segments(place.parts, tokenising)
        if not segments.is_read:
            _read_all(records, segments, tokenising, num_workers, say)
        if not segments.users:
            raise ConfigError(
                f"data.source = {source!r}: no usable record; dropped: {dict(segments.dropped)}"
            )
        say(f"writing: {len(segments.users):,} users")
        joined = sequence_length if cutting == "join" else None
        num_examples, num_tokens = write_merged(segments, place.result, joined)
        write_keys(place.result, tokenising.dtype, len(segments.users))
        say("computing checksums")
        manifest = Manifest(
            version=FORMAT_VERSION,
            users=len(segments.users),
            examples=num_examples,
            tokens=num_tokens,
            tokenizer_fingerprint=tokenizer_fingerprint,
            sequence_length=sequence_length,
            cutting=cutting,
            dropped=dict(sorted(segments.dropped.items())),
            dtype=tokenising.dtype,
            source=source,
            files={path.name: integrity.facts(path) for path in sorted(place.result.iterdir())},
            sha256="",
        )
        write_manifest(place.result, manifest)
    integrity.note_whole(destination)
    return TokenStore.open(destination)


def open_or_build(config: DataConfig, model: LanguageModel) -> TokenStore:
    """Open the store that `config.source` is, or the cached one made of it, or make that.

    The cache is keyed by everything the content depends on, so it never has to be refreshed.

    Raises:
        ConfigError: a bad source or column; a given store made with another tokenizer, sequence
            length or treatment of long texts than the run's.
    """
    given = Path(config.source).expanduser()
    if is_store(given):
        return _fitting(TokenStore.open(given), config, model)
    destination = paths.cache_dir() / "stores" / cache_key(config, model)
    if not destination.exists():
        try:
            with terminal_progress() as progress:
                return build_store(
                    sources.records(config),
                    encode=model.encoder,
                    vocabulary_size=model.vocabulary_size,
                    tokenizer_fingerprint=model.tokenizer_fingerprint,
                    sequence_length=config.sequence_length,
                    cutting=config.cutting,
                    destination=destination,
                    source=config.source,
                    key=destination.name,
                    progress=progress,
                )
        except FileExistsError:
            pass  # another process was faster, with the same content
    return TokenStore.open(destination)


@contextmanager
def terminal_progress() -> Iterator[Say]:
    """Show a line on standard error, if that is a terminal; give its setter."""
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda line: bar.update(task, description=line)


def _read_all(
    records: Iterable[Record],
    segments: Segments,
    tokenising: Tokenising,
    num_workers: int | None,
    say: Say,
) -> None:
    before = segments.num_records
    if before:
        say(f"passing over {before:,} texts that are done")
    rest = _batches(islice(records, before, None))
    started = time.monotonic()
    for arrived in tokenised(rest, tokenising, num_workers):
        segments.add(arrived)
        rate = (segments.num_records - before) / max(time.monotonic() - started, 1e-3)
        say(
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


def cache_key(config: DataConfig, model: LanguageModel) -> str:
    """Return a SHA-256 (hex) of everything that the content of a store depends on."""
    parts = [
        FORMAT_VERSION,
        sources.source_fingerprint(config),
        config.user_column,
        config.text_column,
        model.tokenizer_fingerprint,
        config.sequence_length,
        config.cutting,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _fitting(store: TokenStore, config: DataConfig, model: LanguageModel) -> TokenStore:
    manifest = store.manifest
    if manifest["tokenizer_fingerprint"] != model.tokenizer_fingerprint:
        raise ConfigError(
            f"data.source = {config.source!r}: the store was made with another tokenizer "
            f"({manifest['tokenizer_fingerprint'][:12]}…) than that of model.name_or_path = "
            f"{model.name!r} ({model.tokenizer_fingerprint[:12]}…); build it with "
            f"--tokenizer {model.name}"
        )
    for field in ("sequence_length", "cutting"):
        wanted, found = config.model_dump()[field], dict(manifest)[field]
        if wanted != found:
            raise ConfigError(
                f"data.{field} = {wanted!r}: the store {config.source!r} was made with {found!r}; "
                f"set data.{field} to that or build another store"
            )
    return store

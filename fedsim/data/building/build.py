"""Build a token store from records by streaming, in bounded memory.

First (`tokenise`, `buckets`), batches of texts become pieces of token ids, which are written to
buckets of users. Then (`write`) the buckets become the files of the store. All files are written
to a hidden folder beside the destination, which is renamed at the end. So a store is either
complete or missing.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedsim.data.building import tokenise
from fedsim.data.building.buckets import Buckets
from fedsim.data.building.tokenise import BatchTokeniser
from fedsim.data.building.write import write_examples, write_owners
from fedsim.data.sources.records import Record
from fedsim.data.store import TokenStore
from fedsim.data.store import manifest as layout
from fedsim.data.store.manifest import Manifest
from fedsim.errors import ConfigError
from fedsim.utils.files import naming, sync_all
from fedsim.utils.locks import locked
from fedsim.utils.terminal import every_half_minute, progress_console

ReportLine = Callable[[str], None]

_BATCH_TEXTS = 1000
_BATCH_CHARACTERS = 1 << 20


def build_store(
    records: Iterable[Record],
    tokeniser: BatchTokeniser,
    destination: Path,
    *,
    tokenizer_fingerprint: str,
    source: str,
    co_owned: bool = False,
    user_column: str | None = None,
    text_kind: Mapping[str, str] | None = None,
    progress: ReportLine | None = None,
) -> TokenStore:
    """Write a store of these records, with users in order of first appearance and texts in order.

    Args:
        records: the records. The iterable may count its own dropped records in a mapping
            `dropped`, from reason to number.
        tokeniser: turns texts into examples.
        destination: a folder that does not exist yet. Its parent receives a hidden folder.
        tokenizer_fingerprint: fingerprint of the tokenizer behind `tokeniser`, hex.
        source: the source in words, for the manifest.
        co_owned: whether records name further owners; not if the tokeniser joins texts.
        user_column: user column of the source, for the manifest; None if there is none.
        text_kind: columns of the texts, for the manifest; see `Manifest`.
        progress: called after each batch with a line on the progress.

    Raises:
        ConfigError: there is no usable record, or the chat template refuses a conversation.
        FileExistsError: `destination` exists, or another process created it meanwhile.
        ValueError: `encode` gave an id outside the vocabulary.
    """
    report = progress or (lambda line: None)
    with _hidden_folder(destination) as (scratch, folder):
        buckets = Buckets(scratch, tokeniser)
        _read_all(records, buckets, tokeniser, report)
        users, dropped = len(buckets.users), dict(sorted(buckets.dropped.items()))
        if not users:
            raise _no_record(source, dropped)
        report(f"writing: {users:,} users")
        joined = tokeniser.sequence_length if tokeniser.joins else None
        num_examples, num_tokens = write_examples(buckets, folder, joined)
        owners = write_owners(buckets, folder) if co_owned else None
        report("computing checksums")
        manifest = Manifest(
            version=layout.CO_OWNED_VERSION if co_owned else layout.FORMAT_VERSION,
            users=users,
            examples=num_examples,
            tokens=num_tokens,
            tokenizer_fingerprint=tokenizer_fingerprint,
            sequence_length=tokeniser.sequence_length,
            cutting=tokeniser.cutting,
            loss_on=tokeniser.loss_on,
            dropped=dropped,
            dtype=tokeniser.dtype,
            source=source,
            files={path.name: layout.file_facts(path) for path in sorted(folder.iterdir())},
            sha256="",
        )
        if owners is not None:
            manifest["owners"] = owners
        if user_column is not None:
            manifest["user_column"] = user_column
        if text_kind is not None:
            manifest["text_kind"] = dict(text_kind)
        layout.write_manifest(folder, manifest)
    return TokenStore.open(destination)


@contextmanager
def _hidden_folder(destination: Path) -> Iterator[tuple[Path, Path]]:
    """Yield two empty folders: for temporary files, and for the store.

    If the block ends without an error, the second folder is synced and renamed to `destination`.
    Only one process at a time has the folders; others wait. The next build of the same destination
    removes the files of a killed build.

    Raises:
        FileExistsError: `destination` exists; another process may have just created it.
    """
    folder = destination.with_name(f".{destination.name}.build")
    lock = destination.with_name(f".{destination.name}.lock")
    waiting = f"another process is building {destination}: waiting for it"
    with naming(destination), locked(lock, waiting=waiting):
        if destination.exists():
            raise FileExistsError(f"{destination} exists")
        shutil.rmtree(folder, ignore_errors=True)
        scratch, store = folder / "scratch", folder / "store"
        try:
            scratch.mkdir(parents=True)
            store.mkdir()
            yield scratch, store
            sync_all(store)
            store.rename(destination)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def terminal_progress() -> Iterator[ReportLine]:
    """Show a progress line on standard error; yield its setter.

    Without a terminal, it logs a line every half minute.
    """
    console = progress_console()
    what = "building the store (not protected by the privacy guarantee)"
    if not console.is_terminal:
        yield every_half_minute(what)
        return
    with console.status(what) as status:
        yield lambda line: status.update(f"{what}: {line}")


def _read_all(
    records: Iterable[Record], buckets: Buckets, tokeniser: BatchTokeniser, report: ReportLine
) -> None:
    started = time.monotonic()
    for batch in _batches(records):
        buckets.add(tokeniser(batch))
        rate = buckets.num_records / max(time.monotonic() - started, 1e-3)
        report(
            f"tokenising: {buckets.num_records:,} texts of {len(buckets.users):,} users, "
            f"{rate:,.0f} texts/s"
        )
    buckets.flush()
    buckets.dropped.update(getattr(records, "dropped", {}))


def _no_record(source: str, dropped: Mapping[str, int]) -> ConfigError:
    reasons = ", ".join(f"{count} {why}" for why, count in dropped.items() if count)
    hint = (
        "; data.loss_on chooses the roles of the messages that count"
        if tokenise.UNCOUNTED in dropped
        else ""
    )
    if tokenise.NO_TOKENS in dropped:
        hint += "; the tokenizer knows none of their characters: take a model for their language"
    return ConfigError(
        f"data.source = {source!r}: no usable record; dropped: {reasons or 'none'}{hint}"
    )


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield batches of a thousand records, or fewer if they are long."""
    batch: list[Record] = []
    characters = 0
    for record in records:
        batch.append(record)
        characters += len(record.text)
        if len(batch) >= _BATCH_TEXTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch

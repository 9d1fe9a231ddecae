"""From (user, text) records to a token store, streaming, with bounded memory.

Two passes. The first (`arrivals`) encodes batches of texts and appends their tokens to a
temporary file as they come. The second copies the tokens into user order, a bounded chunk at a
time. All of it happens in a hidden folder beside the destination, which is renamed at the end: a
store is whole or it is not there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fedsim import paths
from fedsim.config import DataConfig
from fedsim.data import sources
from fedsim.data import store as layout
from fedsim.data.arrivals import Arrivals, Cutting, Encode, Record
from fedsim.data.store import Indices, Manifest, TokenStore
from fedsim.errors import ConfigError

if TYPE_CHECKING:  # torch takes seconds to import, and nothing here computes with it
    from fedsim.language_model import LanguageModel

_BATCH_TEXTS = 1000
_CHUNK_TOKENS = 1 << 20


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
    progress: Callable[[int], None] | None = None,
) -> TokenStore:
    """Write a store of these records, users in order of first appearance, texts in order.

    Args:
        records: (user, text); a record with a null or an empty text is dropped, counted.
        encode: texts to their token ids.
        vocabulary_size: every id is below it.
        tokenizer_fingerprint: of the tokenizer behind `encode`, hex.
        sequence_length: most ids an example may have, at least 2.
        cutting: "split" a longer text into pieces that overlap in one token, or "truncate" it;
            or "join" a user's texts end to end and cut them into examples of nearly equal length.
        destination: a folder that does not exist yet.
        source: the source in words, for the manifest.
        progress: called after each batch with the number of records read so far.

    Raises:
        ConfigError: not one usable record.
        FileExistsError: `destination` exists; also when another process made it meanwhile.
        ValueError: `encode` gave an id outside the vocabulary.
    """
    with _workshop(destination) as folder:
        unordered = folder / "arrivals.bin"
        with unordered.open("wb") as file:
            arrivals = Arrivals(
                file,
                encode=encode,
                vocabulary_size=vocabulary_size,
                sequence_length=sequence_length,
                cutting=cutting,
            )
            _read_all(records, arrivals, progress)
        if not arrivals.lengths:
            raise ConfigError(
                f"data.source = {source!r}: no usable record; dropped: {dict(arrivals.dropped)}"
            )
        joined = sequence_length if cutting == "join" else None
        num_examples, num_tokens = _write_ordered(arrivals, unordered, folder, joined)
        unordered.unlink()
        manifest = Manifest(
            version=layout.FORMAT_VERSION,
            users=len(arrivals.users),
            examples=num_examples,
            tokens=num_tokens,
            tokenizer_fingerprint=tokenizer_fingerprint,
            sequence_length=sequence_length,
            cutting=cutting,
            dropped=dict(arrivals.dropped),
            dtype=arrivals.dtype,
            source=source,
        )
        text = json.dumps(manifest, indent=2) + "\n"
        (folder / layout.MANIFEST).write_text(text, encoding="utf-8")
    return TokenStore.open(destination)


def open_or_build(config: DataConfig, model: LanguageModel) -> TokenStore:
    """Open the store that `config.source` is, or the cached one made of it, or make that.

    The cache is keyed by everything the content depends on, so it never has to be refreshed.

    Raises:
        ConfigError: a bad source or column; a given store made with another tokenizer, sequence
            length or treatment of long texts than the run's.
    """
    given = Path(config.source).expanduser()
    if layout.is_store(given):
        return _fitting(TokenStore.open(given), config, model)
    destination = paths.cache_dir() / "stores" / _cache_key(config, model)
    if not destination.exists():
        try:
            with terminal_progress() as progress:
                return build_store(
                    sources.records(config),
                    encode=model.encode,
                    vocabulary_size=model.vocabulary_size,
                    tokenizer_fingerprint=model.tokenizer_fingerprint,
                    sequence_length=config.sequence_length,
                    cutting=config.cutting,
                    destination=destination,
                    source=config.source,
                    progress=progress,
                )
        except FileExistsError:
            pass  # another process was faster, with the same content
    return TokenStore.open(destination)


@contextmanager
def terminal_progress() -> Iterator[Callable[[int], None]]:
    """Show a count of texts on standard error, if that is a terminal; give its setter."""
    with Progress(
        SpinnerColumn(),
        TextColumn("tokenising: {task.completed:,} texts"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task("tokenising", total=None)
        yield lambda count: bar.update(task, completed=count)


@contextmanager
def _workshop(destination: Path) -> Iterator[Path]:
    """Give a hidden folder that becomes `destination` if all goes well, and vanishes if not.

    Its files are synced before it is renamed, so not even a power cut leaves half a store.
    """
    if destination.exists():
        raise FileExistsError(f"{destination} exists")
    folder = destination.with_name(f".{destination.name}.{uuid.uuid4().hex}.tmp")
    folder.mkdir(parents=True)
    try:
        yield folder
        for path in folder.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        try:
            folder.rename(destination)
        except OSError as error:  # "directory not empty" is not yet a FileExistsError
            if destination.exists():
                raise FileExistsError(f"{destination} exists") from error
            raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _read_all(
    records: Iterable[Record], arrivals: Arrivals, progress: Callable[[int], None] | None
) -> None:
    remaining = iter(records)
    count = 0
    while batch := list(islice(remaining, _BATCH_TEXTS)):
        arrivals.add(batch)
        count += len(batch)
        if progress is not None:
            progress(count)


def _write_ordered(
    arrivals: Arrivals, unordered: Path, folder: Path, joined: int | None
) -> tuple[int, int]:
    """Write tokens, offsets and names by user; return the numbers of examples and of tokens.

    Where texts are joined, the tokens stay and only the offsets are drawn anew, every `joined`
    tokens at the most.
    """
    user_of = np.frombuffer(arrivals.user_of, dtype=np.uint32)
    lengths = np.frombuffer(arrivals.lengths, dtype=np.uint32).astype(np.int64)
    order = np.argsort(user_of, kind="stable")  # stable: a user's examples stay as they came
    example_offsets = _offsets(lengths[order])
    tokens = np.memmap(unordered, layout.disk_dtype(arrivals.dtype), mode="r")
    with (folder / layout.TOKENS).open("wb") as file:
        for chunk in _gathered(tokens, lengths, order, example_offsets):
            file.write(chunk.tobytes())
    user_offsets = _offsets(np.bincount(user_of))
    if joined is not None:
        example_offsets, user_offsets = _recut(example_offsets[user_offsets], joined)
    np.save(folder / layout.EXAMPLE_OFFSETS, example_offsets)
    np.save(folder / layout.USER_OFFSETS, user_offsets)
    with (folder / layout.USERS).open("w", encoding="utf-8") as names:
        names.writelines(json.dumps(name) + "\n" for name in arrivals.users)
    return len(example_offsets) - 1, int(example_offsets[-1])


def _recut(token_offsets: Indices, longest: int) -> tuple[Indices, Indices]:
    """Cut each user's tokens into the fewest examples of at most `longest`, as equal as can be.

    Args:
        token_offsets: (users + 1,), user u has the tokens offsets[u] … offsets[u + 1] - 1.
        longest: most tokens an example may have.

    Returns:
        Example offsets (in tokens) and user offsets (in examples).
    """
    sizes = np.diff(token_offsets)
    pieces = -(-sizes // longest)
    user_offsets = _offsets(pieces)
    piece = np.arange(user_offsets[-1]) - np.repeat(user_offsets[:-1], pieces)
    within = piece * np.repeat(sizes, pieces) // np.repeat(pieces, pieces)
    starts = np.repeat(token_offsets[:-1], pieces) + within
    return np.append(starts, token_offsets[-1]), user_offsets


def _offsets(counts: npt.NDArray[np.integer]) -> Indices:
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def _gathered(
    tokens: npt.NDArray[np.generic], lengths: Indices, order: Indices, offsets: Indices
) -> Iterator[npt.NDArray[np.generic]]:
    """Yield the tokens of the examples in `order`, about `_CHUNK_TOKENS` at a time.

    Args:
        tokens: in order of arrival.
        lengths: per example in order of arrival.
        order: arrival numbers in the order wanted.
        offsets: of the examples in the order wanted.
    """
    starts = np.cumsum(lengths) - lengths
    first = 0
    while first < len(order):
        limit = offsets[first] + _CHUNK_TOKENS
        last = max(first + 1, int(np.searchsorted(offsets, limit, side="right")) - 1)
        chosen = order[first:last]
        shift = starts[chosen] - offsets[first:last]
        places = np.arange(offsets[first], offsets[last]) + np.repeat(shift, lengths[chosen])
        yield tokens[places]
        first = last


def _cache_key(config: DataConfig, model: LanguageModel) -> str:
    parts = [
        layout.FORMAT_VERSION,
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

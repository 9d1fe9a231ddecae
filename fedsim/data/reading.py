"""The (user, text) records that a config asks for, and what tells whether they are the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from fedsim.data.config import DataConfig
from fedsim.data.preparation.prepare import Prepared, fingerprint, needed_columns
from fedsim.data.sources.local_files import identity
from fedsim.data.sources.rows import rows


def records(config: DataConfig) -> Iterator[tuple[str | None, str | None]]:
    """Return an iterator over (user, text) in the source's order, prepared as the config says.

    Without a preparation None stands where the source has a null, or a user has no name. With one
    the iterator is a `Prepared`, which counts what was dropped, nulls too.

    Raises:
        ConfigError: (while iterating) as of `fedsim.data.sources.rows.rows`.
    """
    steps = config.preparation
    given = rows(config, needed_columns(steps))
    return Prepared(given, steps) if steps else ((user, text) for user, text, _ in given)


def source_fingerprint(config: DataConfig) -> str:
    """Return a SHA-256 (hex) that changes when the source or its preparation does.

    No text is read; see `fedsim.data.sources.local_files.identity`.
    """
    named = [*identity(config.source), *fingerprint(config.preparation)]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()

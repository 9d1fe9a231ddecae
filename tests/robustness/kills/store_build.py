"""A build that takes a second or two and has many buckets: `python -m … DESTINATION WORKERS`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fedsim.data.building import buckets
from fedsim.data.building import build as build_module
from tests.unit.data.data_samples import build, encode

RECORDS = [
    (None if index % 97 == 0 else f"user {index * index % 83}", "x" * (index % 50))
    for index in range(4_000)
]


def slowly(texts: Sequence[str]) -> list[list[int]]:
    """Take ten milliseconds for a batch."""
    time.sleep(0.01)
    return encode(texts)


def main(destination: Path, num_workers: int) -> None:
    """Build, and say when it begins."""
    build_module._BATCH_TEXTS = 40
    buckets.BUFFERED = 8_000
    buckets.USERS = 20
    sys.stdout.write("begins\n")
    sys.stdout.flush()
    build(RECORDS, destination, encode=slowly, num_workers=num_workers)


if __name__ == "__main__":
    # The encoder of a main module cannot be sent to another process.
    from tests.robustness.kills import store_build  # noqa: PLW0406

    store_build.main(Path(sys.argv[1]), int(sys.argv[2]))

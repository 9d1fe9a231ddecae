"""Steps of the benchmark `store`, each run in its own process.

`python -m fedsim.experiments.benchmarks.store.steps STEP FOLDER USERS EXAMPLES` prints JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedsim.utils.machine import peak_memory_bytes, proc_bytes


def build(folder: Path, users: int, examples: int) -> dict[str, Any]:
    """Build the synthetic store with the real builder; return seconds, peak bytes and sizes."""
    from fedsim.data.building.build import build_store  # noqa: PLC0415
    from fedsim.data.building.tokenise import BatchTokeniser  # noqa: PLC0415
    from fedsim.data.sources.records import Record  # noqa: PLC0415
    from fedsim.experiments.benchmarks.store import sample  # noqa: PLC0415

    sizes = sample.user_sizes(users, examples)
    started = time.perf_counter()
    store = build_store(
        (Record(*pair) for pair in sample.texts(sizes)),
        BatchTokeniser(sample.encode, sample.VOCABULARY_SIZE, sample.SEQUENCE_LENGTH, "split"),
        folder / "store",
        tokenizer_fingerprint="0" * 64,
        source="made up",
    )
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "peak_bytes": peak_memory_bytes(),
        "users": store.num_users,
        "examples": store.num_examples,
        "tokens": store.num_tokens,
        "largest_user": int(sizes.max()),
        "bytes": sum(path.stat().st_size for path in store.path.iterdir()),
    }


def open_store(folder: Path, users: int, examples: int) -> dict[str, Any]:
    """Open the store; return seconds, and the process's anonymous memory before and after."""
    from fedsim.data.store import TokenStore  # noqa: PLC0415

    before = _anonymous_bytes()
    started = time.perf_counter()
    store = TokenStore.open(folder / "store")
    seconds = time.perf_counter() - started
    after = _anonymous_bytes()
    return {
        "seconds": seconds,
        "users": store.num_users,
        "anonymous_bytes": after,
        "anonymous_bytes_before": before,
    }


def verify(folder: Path, users: int, examples: int) -> dict[str, Any]:
    """Read every byte and compare the checksums; return seconds."""
    from fedsim.data.store import TokenStore  # noqa: PLC0415

    store = TokenStore.open(folder / "store")
    started = time.perf_counter()
    store.verify()
    return {"seconds": time.perf_counter() - started}


def _anonymous_bytes() -> int:
    """Return this process's anonymous memory in bytes, or 0 if the system does not report it."""
    path = Path("/proc/self/smaps_rollup")
    return proc_bytes(path, "Anonymous") if path.exists() else 0


STEPS: dict[str, Callable[[Path, int, int], dict[str, Any]]] = {
    "build": build,
    "open": open_store,
    "verify": verify,
}

if __name__ == "__main__":
    step, where, num_users, num_examples = sys.argv[1:]
    result = STEPS[step](Path(where), int(num_users), int(num_examples))
    sys.stdout.write(json.dumps(result) + os.linesep)

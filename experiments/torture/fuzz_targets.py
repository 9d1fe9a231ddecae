"""All readers of what comes from disk or from the wire."""

from __future__ import annotations

from experiments.torture import fuzz_config, fuzz_messages, fuzz_runs, fuzz_store
from experiments.torture.fuzz_target import Target

TARGETS: tuple[Target, ...] = (
    *fuzz_config.TARGETS,
    *fuzz_store.TARGETS,
    *fuzz_runs.TARGETS,
    *fuzz_messages.TARGETS,
)

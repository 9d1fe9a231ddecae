"""All readers of what comes from disk or from the wire."""

from __future__ import annotations

from experiments.torture import (
    fuzz_caches,
    fuzz_config,
    fuzz_messages,
    fuzz_models,
    fuzz_runs,
    fuzz_sources,
    fuzz_store,
)
from experiments.torture.fuzz_target import Target

TARGETS: tuple[Target, ...] = (
    *fuzz_config.TARGETS,
    *fuzz_store.TARGETS,
    *fuzz_runs.TARGETS,
    *fuzz_caches.TARGETS,
    *fuzz_messages.TARGETS,
    *fuzz_models.TARGETS,
    *fuzz_sources.TARGETS,
)

"""All readers of what comes from disk or from the wire."""

from __future__ import annotations

from tests.robustness.fuzzing import caches as fuzz_caches
from tests.robustness.fuzzing import config as fuzz_config
from tests.robustness.fuzzing import models as fuzz_models
from tests.robustness.fuzzing import runs as fuzz_runs
from tests.robustness.fuzzing import sources as fuzz_sources
from tests.robustness.fuzzing import store as fuzz_store
from tests.robustness.fuzzing.target import Target

TARGETS: tuple[Target, ...] = (
    *fuzz_config.TARGETS,
    *fuzz_store.TARGETS,
    *fuzz_runs.TARGETS,
    *fuzz_caches.TARGETS,
    *fuzz_models.TARGETS,
    *fuzz_sources.TARGETS,
)

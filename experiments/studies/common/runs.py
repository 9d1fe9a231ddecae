"""Helpers for studies of single runs: write texts, and train a run only once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedsim.config import Config
from fedsim.report.schema import RunReport, load_report
from fedsim.runner.folder import RunFolder
from fedsim.runner.launch import run
from fedsim.utils.files import write_atomically


def trained_once(config: Config, out: Path) -> RunReport:
    """Train unless `out` has a finished run; return the report.

    Raises:
        ConfigError: `out` has a run of another config.
    """
    folder = RunFolder(out)
    if folder.config.exists():
        folder.check_resumable(config)
    if not folder.report.exists():
        run(config, out, resume=True)
    return load_report(out)


def written(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows as JSONL, unless an identical file exists: a store depends on a file's time."""
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if not path.exists() or path.read_text(encoding="utf-8") != content:
        write_atomically(path, content)
    return path

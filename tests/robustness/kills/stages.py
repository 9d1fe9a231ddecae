"""The stages of a run's life, by the file that is being changed."""

from __future__ import annotations

from pathlib import Path

STAGES = ("base model", "store", "begin", "charge", "evaluate", "checkpoint", "model", "report")
"""In the order of a life. "evaluate" ends with the line of the metrics that the scores are in."""

EARLY_STAGES = STAGES[:2]
"""Those in which the cache is changed, and not yet the run folder."""

QUIET_STAGES = ("loading", "train")
"""Those in which nothing on disk is changed: loading what was built before, and computing."""

_BY_NAME = {
    "ledger": "charge",
    "metrics": "evaluate",
    "seconds": "checkpoint",
    "checkpoints": "checkpoint",
    "model": "model",
    "report": "report",
}


def stage_of(path: str, run: Path, cache: Path) -> str | None:
    """Return the stage in which a life changes this file; None for files of others.

    Args:
        path: absolute; temporary names stand for the file that they will be.
        run: the run folder.
        cache: what `FEDSIM_CACHE` is.
    """
    if _inside(path, cache / "models"):
        return "base model"
    if _inside(path, cache / "stores"):
        return "store"
    if not _inside(path, run) or path == str(run):
        return None
    first = Path(path).relative_to(run).parts[0].lstrip(".")
    return _BY_NAME.get(first.split(".")[0], "begin")


def _inside(path: str, folder: Path) -> bool:
    return path == str(folder) or path.startswith(f"{folder}/")

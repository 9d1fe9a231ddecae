"""run.json: a run folder's format, package versions, sources, and the id of its secret seed."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsim.errors import ConfigError
from fedsim.utils import files as paths
from fedsim.utils.json_text import read_json
from fedsim.utils.machine import version

FORMAT = 3


def write_identity(path: Path, sources: Mapping[str, str], run_id: str | None) -> None:
    """Write run.json.

    Args:
        path: path of run.json.
        sources: see `Materials.sources`.
        run_id: the id of the secret data seed, if the run has one.
    """
    _write(path, {"version": FORMAT, **_versions(), "sources": dict(sources), "id": run_id})


def read_identity(path: Path) -> dict[str, Any]:
    """Return the content of run.json; {} if there is none.

    Raises:
        ConfigError: the file is unreadable or of an unsupported format.
    """
    if not path.exists():
        return {}
    try:
        content = dict(read_json(path))
        found, _ = content["version"], dict(content["sources"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"run {path}: cannot be read: {error!r}") from None
    if found != FORMAT:
        raise ConfigError(
            f"run {path}: has format {found!r}, this fedsim reads {FORMAT}; train again with "
            "another --out, or open it with the fedsim version that wrote it"
        )
    return content


def version_note(path: Path) -> str:
    """Return a message on package versions that changed since the run began, or ""."""
    before, now = read_identity(path), _versions()
    changed = [
        f"{name} {before[name]} -> {now[name]}"
        for name in now
        if before.get(name, now[name]) != now[name]
    ]
    words = "The run continues with other versions than it began with: "
    return f"{words}{', '.join(changed)}" if changed else ""


def mark_diverged(path: Path, reason: str) -> None:
    """Store in run.json that the run diverged, so that it cannot resume."""
    _write(path, {**read_json(path), "diverged": reason})


def check_sources(path: Path, now: Mapping[str, str], *, resumes: bool = False) -> None:
    """Raise `ConfigError` if the run in run.json used other sources than `now`.

    Args:
        path: path of run.json; the check passes if it does not exist.
        now: see `Materials.sources`.
        resumes: whether the run is being resumed, for the message.
    """
    before = read_identity(path).get("sources", now)
    if changed := " and ".join(sorted(name for name in now if before.get(name) != now[name])):
        begin = "--resume: " if resumes else ""
        instead = ", or start a new run with another --out" if resumes else ""
        raise ConfigError(
            f"{begin}{changed} changed since the run in {path.parent} began, and the split into "
            f"training and held-out text depends on it; restore it{instead}"
        )


def keep_seed(seed: int) -> str:
    """Store a secret seed outside of the run folder, readable by its owner only; return its id."""
    run_id = uuid.uuid4().hex
    place = _place(run_id)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths.write_atomically(place, json.dumps({"seed": seed}) + "\n", private=True)
    return run_id


def kept_seed(run_id: str, folder: Path) -> int:
    """Return the stored seed of the run in `folder`.

    Raises:
        ConfigError: this machine does not hold the seed, or the id is malformed.
    """
    try:
        return int(read_json(_place(uuid.UUID(run_id).hex))["seed"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(
            f"run {folder}: its noise is secure, so its secret seed is stored elsewhere, but "
            f"{_place(run_id)} does not hold it; copy that file from the machine of the run"
        ) from None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    known = {key: value for key, value in content.items() if value is not None}
    paths.write_atomically(path, json.dumps(known, indent=1) + "\n")


def _versions() -> dict[str, str]:
    return {"fedsim": version("fedsim-dp"), "torch": version("torch")}


def _place(run_id: str) -> Path:
    return paths.cache_dir() / "seeds" / f"{run_id}.json"

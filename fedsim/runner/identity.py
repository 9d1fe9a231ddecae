"""run.json: the format of a run folder, what its run is made from, and its secret seed's place."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedsim.errors import ConfigError
from fedsim.utils import files as paths
from fedsim.utils.json_text import read_json

FORMAT = 2  # 1 addressed what is chosen for users by their places in the file
_ID = re.compile(r"[0-9a-f]{32}")


def write_identity(path: Path, sources: Mapping[str, str], run_id: str | None) -> None:
    """Write run.json.

    Args:
        path: of the file.
        sources: what the run is made from, a checksum for each; see `release_seed.sources`.
        run_id: what the secret data seed is kept under, if the run has one.
    """
    content = {"version": FORMAT, "fedsim": version("fedsim-dp"), "sources": dict(sources)}
    if run_id is not None:
        content["id"] = run_id
    paths.write_atomically(path, json.dumps(content, indent=1) + "\n")


def read_identity(path: Path) -> dict[str, Any]:
    """Return what run.json says; {} where a folder of an earlier fedsim has none.

    Raises:
        ConfigError: unreadable, or of a format that this fedsim does not know.
    """
    if not path.exists():
        return {}
    try:
        content = read_json(path)
        found, maker = content["version"], content["fedsim"]
        sources = dict(content["sources"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"run {path}: cannot be read: {error!r}") from None
    if found != FORMAT:
        raise ConfigError(
            f"run {path}: format {found!r}, made by fedsim {maker}; this fedsim reads {FORMAT}: "
            f"open it with fedsim {maker}"
        )
    return {**content, "sources": sources}


def mark_diverged(path: Path, reason: str) -> None:
    """Put into run.json why the run ended, so that it never goes on."""
    content = {**read_json(path), "diverged": reason}
    paths.write_atomically(path, json.dumps(content, indent=1) + "\n")


def check_sources(path: Path, now: Mapping[str, str], *, resumes: bool = False) -> None:
    """Raise `ConfigError` if a run was made from something else than `now`.

    Args:
        path: of run.json; where there is none, nothing is known.
        now: as of `fedsim.release_seed.sources`.
        resumes: whether the run is to go on, for the error.
    """
    before = read_identity(path).get("sources", now)
    changed = sorted(what for what in now if before.get(what) != now[what])
    if changed:
        told = f"{' and '.join(changed)} changed since the run in {path.parent} began"
        raise ConfigError(
            f"--resume: {told}; a run goes on from what it began with, start another with another "
            "--out"
            if resumes
            else f"{told}: who was trained on, and who held out, is known of that alone; give back "
            "what it began with"
        )


def keep_seed(seed: int) -> str:
    """Keep a data seed outside of its run's folder, for its owner alone; return its id."""
    run_id = uuid.uuid4().hex
    place = _place(run_id)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths.write_atomically(place, json.dumps({"seed": seed}) + "\n", private=True)
    return run_id


def seed_file(run_id: object, folder: Path) -> Path:
    """Return where the seed of the run in `folder` is kept.

    Raises:
        ConfigError: the id is not one that `keep_seed` returned.
    """
    if not isinstance(run_id, str) or not _ID.fullmatch(run_id):
        raise ConfigError(f"run {folder}: id = {run_id!r} in run.json: not one that fedsim writes")
    return _place(run_id)


def kept_seed(run_id: object, folder: Path) -> int:
    """Return the seed that was kept.

    Raises:
        ConfigError: it is not here; the message says where it should be.
    """
    place = seed_file(run_id, folder)
    try:
        seed = read_json(place)["seed"]
        if type(seed) is not int:
            raise ValueError(seed)
    except (OSError, ValueError, TypeError, KeyError):
        raise ConfigError(
            f"run {folder}: its noise is secure, so the seed that its texts were split by is kept "
            f"apart, and {place} does not hold it; copy that file from where the run was made"
        ) from None
    return seed


def _place(run_id: str) -> Path:
    return paths.cache_dir() / "seeds" / f"{run_id}.json"

"""What coins and noise of a run are drawn from: everything that its releases are a function of."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

from fedsim.config import Config
from fedsim.materials import Materials
from fedsim.registry import names


def release_seed(config: Config, materials: Materials) -> int:
    """Return the seed of a run's coins and noise, 64 bits.

    It is a function of the config's seed, of all that the run trains with, of the stored text and
    of the files of the model. Two runs of which any of these differs share no draw, though their
    seeds are equal. With the same noise the difference of their releases would have none: the
    same config on last month's text and on this month's would show what the new users added.

    Who computes, and when it is looked at and saved, has no part in it; the precision has. A hub
    id stands for one model, whatever is published under it later.
    """
    told = [*_settings(config), sources(config, materials)]
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).digest()
    return int.from_bytes(digest[:8], "little")


def sources(config: Config, materials: Materials) -> dict[str, str]:
    """Return a SHA-256 (hex) of the stored text and one of the files of the model.

    A built-in model and a hub id have no files; what they are is in the config.
    """
    return {
        "data.source": _digest(materials.store.manifest["files"]),
        "model.name_or_path": _digest(_weights(config.model.name_or_path)),
    }


def _settings(config: Config) -> list[str]:
    settings = config.model_dump_json(
        exclude={"executor": True, "training": True, "privacy": {"shared"}}, exclude_defaults=True
    )
    return [settings, config.executor.precision]


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _weights(name: str) -> dict[str, str]:
    """Return the checksum of each file of a model that is a file or a folder; of others, none."""
    path = Path(name).expanduser()
    if name in names("models") or not path.exists():
        return {}
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {
        str(file.relative_to(path)): _checksum(file, *_version(file))
        for file in files
        if file.is_file()
    }


def _version(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


@lru_cache(maxsize=256)
def _checksum(path: Path, *version: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

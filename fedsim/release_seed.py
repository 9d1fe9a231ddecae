"""The seed of a run's coins and noise: a digest of everything that its releases depend on."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

from fedsim.accounting.ledger import Ledger
from fedsim.config import Config
from fedsim.materials import Materials, loader_name
from fedsim.registry import distributions, names
from fedsim.state import ServerState
from fedsim.tensors import parameters_digest
from fedsim.utils.files import file_digest, stamp
from fedsim.utils.json_text import digest
from fedsim.utils.machine import version

_COMPUTE = ("fedsim-dp", "dp-accounting", "torch", "transformers", "peft", "numpy", "scipy")


def release_seed(config: Config, materials: Materials, *more: object) -> int:
    """Return the seed of a run's coins and noise, 128 bits.

    It is a function of `Materials.seed`, of all that the run trains with, of the stored text, of
    the files of the model and of the weights that training starts from, of the versions of fedsim
    and of what it computes with, and of the package behind each name in the config that a plug-in
    may have, its source included where it is not fedsim's own. Two runs of which any of these
    differs share no draw, though their seeds are equal.
    With the same noise the difference of their releases would have none: the same config on last
    month's text and on this month's would show what the new users added.

    Who computes, and when it is looked at and saved, has no part in it; the precision has.

    Args:
        config: of the run.
        materials: of the config.
        more: other questions to the same text, as JSON values; each has draws of its own.
    """
    facts = [
        materials.seed,
        *_settings(config),
        sources(config, materials),
        materials.start_digest,
        {name: version(name) for name in _COMPUTE},
        _plug_ins(config),
        *more,
    ]
    whole = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()
    return int.from_bytes(whole[:16], "little")


def seed_after(seed: int, ledger: Ledger, state: ServerState | None) -> int:
    """Return the seed of a run that goes on after releases of other seeds.

    Its rounds begin from what those releases made: on another path than that of a run that had this
    seed from the start, or that goes on from another checkpoint of a copy. With the same noise the
    difference of two paths would show.

    Args:
        seed: of `release_seed`.
        ledger: the run's own, with releases that are not of this seed.
        state: what it goes on from; None: from round 0.
    """
    start: list[object] = []
    if state is not None:
        moved = parameters_digest(state.parameters), parameters_digest(state.optimizer_state)
        start = [state.round, state.clip_scale, *moved]
    return int(digest([seed, ledger.to_json(), start])[:32], 16)


def sources(config: Config, materials: Materials) -> dict[str, str]:
    """Return a SHA-256 (hex) of the stored text and one of the files of the model.

    Both with `Materials.seed` in front: they are in the run folder, and where that seed is secret
    a guess of the text cannot be checked against them. A built-in model and a hub id have no files.
    """
    found = {
        "data.source": materials.text_digest,
        "model.name_or_path": digest([materials.seed, _files(config.model.name_or_path)]),
    }
    if config.model.adapter is not None:
        found["model.adapter"] = digest([materials.seed, _files(config.model.adapter)])
    return found


def _settings(config: Config) -> list[str]:
    # Who owns what is in the stored text, and `build_plan` adds what bounding keeps.
    settings = config.model_dump_json(
        exclude={
            "executor": True,
            "training": True,
            "privacy": {"shared"},
            "data": {"owners_column", "owners_separator"},
            "strategy": {"bounding"},
        },
        exclude_defaults=True,
    )
    scores = config.training.private_evaluation
    return [settings, config.executor.precision, *([scores.model_dump_json()] if scores else [])]


def _plug_ins(config: Config) -> dict[str, str]:
    """Return the package and version behind what a config names and entry points resolve."""
    loader = loader_name(config.model.name_or_path)
    return distributions({"strategies": config.strategy.name, "models": loader})


def _files(name: str) -> dict[str, str]:
    """Return the checksum of each file of a model that is a file or a folder; of others, none."""
    path = Path(name).expanduser()
    if name in names("models") or not path.exists():
        return {}
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {
        str(file.relative_to(path)): _checksum(*stamp(file)) for file in files if file.is_file()
    }


@lru_cache(maxsize=256)
def _checksum(path: str, *_version: int) -> str:
    return file_digest(Path(path))

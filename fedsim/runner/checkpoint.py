"""Checkpoints: server states on disk, and the newest readable one of a run."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedsim.accounting.ledger import Ledger
from fedsim.errors import ConfigError
from fedsim.state import ServerState
from fedsim.tensors import Tensors
from fedsim.utils.files import whole_file

_FORMAT = 4
_NAME = re.compile(r"round-\d+\.safetensors")
_KEY = "fedsim"

log = logging.getLogger("fedsim")


def save_checkpoint(folder: Path, state: ServerState, keep: int) -> Path:
    """Write `round-NNNNNN.safetensors` atomically, then delete all but the last `keep`."""
    tensors = {f"parameters/{name}": value for name, value in state.parameters.items()}
    tensors |= {f"optimizer/{name}": value for name, value in state.optimizer_state.items()}
    tensors |= {f"average/{name}": value for name, value in state.average.items()}
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    head = {
        "format": _FORMAT,
        "round": state.round,
        "ledger": state.ledger.to_json(),
        "clip_scale": state.clip_scale,
    }
    # One key, so that equal states give equal files: safetensors writes keys in random order.
    metadata = {_KEY: json.dumps(head)}
    path = folder / f"round-{state.round:06d}.safetensors"
    with whole_file(path) as temporary:  # serialising in memory would need a second copy
        temporary.touch()
        mode = temporary.stat().st_mode  # the run's usual mode; safetensors sets its own
        save_file(tensors, temporary, metadata)
        temporary.chmod(mode)
    for old in checkpoints_in(folder)[:-keep]:
        old.unlink()
    return path


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints in order of their rounds; ignore other files."""
    return sorted(
        (p for p in folder.glob("round-*.safetensors") if _NAME.match(p.name)), key=round_of
    )


def round_of(path: Path) -> int:
    """Return the number of completed rounds from a checkpoint's file name."""
    return int(path.stem.removeprefix("round-"))


def load_checkpoint(path: Path) -> ServerState:
    """Read a state back, bit for bit.

    Raises:
        ConfigError: the file is damaged, no checkpoint, or of another format.
    """
    try:
        with safe_open(path, framework="pt") as file:
            head = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if head["format"] != _FORMAT:
            raise ValueError(f"format {head['format']!r}, this fedsim reads {_FORMAT}")
        return ServerState(
            round=head["round"],
            parameters=_part(tensors, "parameters/"),
            optimizer_state=_part(tensors, "optimizer/"),
            ledger=Ledger.from_json(head["ledger"]),
            clip_scale=head["clip_scale"],
            average=_part(tensors, "average/"),
        )
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"checkpoint {path}: damaged ({error}); delete it, or take another --out"
        ) from None


def _part(tensors: Tensors, prefix: str) -> Tensors:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def newest_whole_state(folder: Path) -> ServerState | None:
    """Return the state of the newest readable checkpoint; None if there are no checkpoints.

    Damaged checkpoints cause a warning; the run replaces them when it reaches their rounds again.

    Raises:
        ConfigError: there are checkpoints, but all are damaged.
    """
    damage: list[ConfigError] = []
    for path in reversed(checkpoints_in(folder)):
        try:
            return load_checkpoint(path)
        except ConfigError as error:
            damage.append(error)
            log.warning("%s", error)
    if damage:
        raise damage[0]
    return None

"""Checkpoints: server states on disk under a checksum, and the newest whole one of a run."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedsim.accounting.ledger import Ledger
from fedsim.errors import ConfigError, about
from fedsim.state import ServerState
from fedsim.tensors import Tensors
from fedsim.utils.files import whole_file
from fedsim.utils.json_text import is_count, parse_json

PLACEHOLDER = "0" * 64
"""The place of the digest in the header until it is known."""

_LENGTH_BYTES = 8  # of the header's length, with which the file begins
_BUFFER = 1 << 20
_FORMAT = 3
_NAME = re.compile(r"round-\d+\.safetensors")
_KEY = "fedsim"

log = logging.getLogger("fedsim")


def seal(path: Path) -> None:
    """Put the SHA-256 (hex) of a safetensors file in the place of its one placeholder.

    Raises:
        ValueError: there is no placeholder in the header, or more than one.
    """
    with path.open("r+b") as file:
        header = _header(file)
        if header.count(PLACEHOLDER.encode()) != 1:
            raise ValueError("the header must hold the placeholder once")
        digest = _digest(header, file)
        file.seek(0)
        file.write(header.replace(PLACEHOLDER.encode(), digest.encode()))


def is_intact(path: Path, digest: str) -> bool:
    """Whether a file is the one that was sealed with `digest`; reads it through.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        header = _header(file)
        if len(digest) != len(PLACEHOLDER) or header.count(digest.encode()) != 1:
            return False
        return _digest(header.replace(digest.encode(), PLACEHOLDER.encode()), file) == digest


def _header(file: BinaryIO) -> bytes:
    """Return the header, its length before it, of a file that is read from its begin."""
    length = file.read(_LENGTH_BYTES)
    return length + file.read(int.from_bytes(length, "little"))


def _digest(header: bytes, rest: BinaryIO) -> str:
    digest = hashlib.sha256(header)
    while block := rest.read(_BUFFER):
        digest.update(block)
    return digest.hexdigest()


def save_checkpoint(folder: Path, state: ServerState, keep: int) -> Path:
    """Write `round-NNNNNN.safetensors` whole or not at all, then drop all but the last `keep`."""
    tensors = {f"parameters/{name}": value for name, value in state.parameters.items()}
    tensors |= {f"optimizer/{name}": value for name, value in state.optimizer_state.items()}
    head = {
        "format": _FORMAT,
        "round": state.round,
        "ledger": state.ledger.to_json(),
        "clip_scale": state.clip_scale,
        "sha256": PLACEHOLDER,
    }
    # One key: safetensors writes several in random order, and equal states give equal files.
    metadata = {_KEY: json.dumps(head)}
    path = folder / f"round-{state.round:06d}.safetensors"
    with whole_file(path) as temporary:  # not from memory, where all would be there once more
        temporary.touch()
        mode = temporary.stat().st_mode  # as other files of the run; safetensors takes another
        save_file(
            {name: value.contiguous() for name, value in tensors.items()}, temporary, metadata
        )
        temporary.chmod(mode)
        seal(temporary)
    for old in checkpoints_in(folder)[:-keep]:
        old.unlink()
    return path


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints in order of their rounds; other files are passed over."""
    return sorted(
        (p for p in folder.glob("round-*.safetensors") if _NAME.match(p.name)), key=round_of
    )


def round_of(path: Path) -> int:
    """Return the number of rounds behind a checkpoint, by its name."""
    return int(path.stem.removeprefix("round-"))


def load_checkpoint(path: Path) -> ServerState:
    """Read a state back, bit for bit.

    Raises:
        ConfigError: not a checkpoint, damaged, or of another format version; it names the file.
    """
    unread = about(f"checkpoint {path}: cannot be read: ", (OSError, SafetensorError))
    with unread, safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    try:
        head = parse_json(metadata[_KEY])
        intact = is_intact(path, str(head["sha256"]))
        version, done, ledger = head["format"], head["round"], head["ledger"]
        scale = float(head["clip_scale"])
        if not 0.0 < scale < math.inf or not is_count(done):
            raise ValueError(f"round = {done!r}, clip_scale = {scale}")
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # JSON's is a ValueError
        raise ConfigError(f"checkpoint {path}: not a fedsim checkpoint: {error!r}") from None
    if not intact:
        raise ConfigError(f"checkpoint {path}: damaged: its content does not fit its checksum")
    if version != _FORMAT:
        raise ConfigError(f"checkpoint {path}: format {version!r}; this fedsim reads {_FORMAT}")
    parameters = _part(tensors, "parameters/")
    if not parameters or any(value.dtype != torch.float32 for value in parameters.values()):
        raise ConfigError(f"checkpoint {path}: its parameters are missing, or not float32")
    with about(f"checkpoint {path}: ", (ConfigError,)):
        charged = Ledger.from_json(ledger)
    return ServerState(
        round=done,
        parameters=parameters,
        optimizer_state=_part(tensors, "optimizer/"),
        ledger=charged,
        clip_scale=scale,
    )


def _part(tensors: Tensors, prefix: str) -> Tensors:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def newest_whole_state(folder: Path, charged: Ledger) -> ServerState | None:
    """Return the state of the newest checkpoint that can be read; None where there are none.

    A damaged one is passed over with a warning that names it, and is replaced when the run gets
    there again.

    Args:
        folder: of the checkpoints.
        charged: the ledger on disk. A checkpoint of n rounds, damaged or not, shows that there
            were n releases at least.

    Raises:
        ConfigError: checkpoints are there and none can be read, or the ledger has fewer releases
            than they show, or others: to go on would lose charges.
    """
    paths = checkpoints_in(folder)
    if paths and charged.num_releases < round_of(paths[-1]):
        raise ConfigError(
            f"--resume: {paths[-1]} has {round_of(paths[-1])} releases behind it and ledger.json "
            f"{charged.num_releases}: charges are missing; put the ledger back that belongs to it"
        )
    damage: list[ConfigError] = []
    for path in reversed(paths):
        try:
            state = load_checkpoint(path)
        except ConfigError as error:
            damage.append(error)
            log.warning("%s; looking for an earlier one", error)
            continue
        if more := state.ledger.beyond(charged):
            raise ConfigError(
                f"--resume: {path} was made by {more} releases that ledger.json does not have: it "
                "is of another run; put back the checkpoints that belong to it"
            )
        return state
    if damage:
        raise ConfigError(
            f"{damage[0]}; no other can be read: to begin at round 0 again, with all that was "
            f"charged staying charged, remove {folder}"
        )
    return None

"""Dropout with masks that depend only on the example, not on engine, batch or order.

A mask is a hash of (example's stream, dropout layer, element). The stream is a hash of the seed,
the round, the user's key, the example's key and, in local training, the step. So a unit's update
depends on the unit alone, as the clip and the sharding of cohorts require. With a global generator
it would depend on the batch; with row numbers it would depend on other users.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch
from torch import nn

from fedsim.errors import ConfigError
from fedsim.execution import Unit
from fedsim.language_model import LanguageModel
from fedsim.seeding import Hashes, base, hashes

# SplitMix64 (Steele, Lea and Flood 2014); constants as signed numbers.
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
_POSITIVE = 2**63 - 1

_rows: ContextVar[torch.Tensor | None] = ContextVar("rows", default=None)


def example_streams(seed: int, round: int, users: Hashes, examples: Hashes) -> torch.Tensor:
    """Return a stream for each example, (examples,) int64.

    Args:
        seed: see `Materials.seed`.
        round: round number, from 0.
        users: (examples,) uint64, key of each example's user.
        examples: (examples,) uint64, key of each example; examples of one user with the same text
            have the same stream.
    """
    of_users = hashes(base(seed, "dropout", round), users)
    return torch.from_numpy(hashes(of_users, examples).view(np.int64))


def at_step(streams: torch.Tensor | None, step: int) -> torch.Tensor | None:
    """Return the streams of one step of local training."""
    return None if streams is None else _mixed(streams + _wrapped((step + 1) * _GAMMA))


def unit_streams(units: Sequence[Unit]) -> torch.Tensor | None:
    """Return the concatenated streams of all units' examples, or None if a unit has none."""
    streams = [unit.streams for unit in units if unit.streams is not None]
    return torch.cat(streams) if streams and len(streams) == len(units) else None


def drops(model: LanguageModel) -> bool:
    """Return whether units of this model need dropout streams."""
    return float(getattr(model, "dropout", 0.0)) > 0.0


@contextmanager
def row_streams(streams: torch.Tensor | None) -> Iterator[None]:
    """Set the dropout streams inside the block, (sequences,) int64; None turns dropout off."""
    token = _rows.set(streams)
    try:
        yield
    finally:
        _rows.reset(token)


class StreamDropout(nn.Module):
    """Dropout by the streams of `row_streams`: zero with probability p, else divided by 1 − p.

    Works under `torch.func.vmap`. Two calls of one layer in a pass use the same mask.
    """

    def __init__(self, p: float, site: int) -> None:
        """Take the probability and the layer's number in the network."""
        super().__init__()
        self.p = p
        self._site = site

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values, (sequences, positions, ...), with some entries dropped.

        An entry's mask depends on its position and its index there, not on the padding.

        Raises:
            ConfigError: the number of streams is not the number of sequences.
        """
        streams = _rows.get()
        if streams is None or values.dim() > 3:  # 4: attention weights under another name
            return values
        if len(streams) != len(values):
            raise ConfigError(
                f"model.dropout = {self.p}: a dropout layer's input does not have a row per text "
                f"({len(values)} rows of {len(streams)} texts); give 0, or other "
                "model.lora_target_modules"
            )
        # Blocks of one network may lie on several GPUs.
        keys = _mixed(streams.to(values.device) ^ _mixed_int(self._site))
        count = values[0].numel()
        counter = torch.arange(1, count + 1, device=values.device) * _GAMMA
        chances = _mixed(keys[:, None] + counter) & _POSITIVE
        survives = (chances >= round(self.p * 2.0**63)).view(values.shape)
        return values * (survives.to(values.dtype) / (1.0 - self.p))


def install_dropout(network: nn.Module, p: float) -> int:
    """Replace the network's `nn.Dropout` layers by `StreamDropout`, and return the number of them.

    Dropout of attention weights stays off: fused attention has none, and an entry's index there
    depends on the padding.
    """
    places = [
        place
        for place, module in network.named_modules()
        if type(module) is nn.Dropout and not _of_attention(place.rpartition(".")[2])
    ]
    for site, place in enumerate(places):
        network.set_submodule(place, StreamDropout(p, site))
    return len(places)


def _of_attention(name: str) -> bool:
    return "attn" in name or "attention" in name


def _mixed(values: torch.Tensor) -> torch.Tensor:
    """Return SplitMix64's output; int64 products wrap around, and shifts are made logical."""
    values = (values ^ _shifted(values, 30)) * _FIRST
    values = (values ^ _shifted(values, 27)) * _SECOND
    return values ^ _shifted(values, 31)


def _shifted(values: torch.Tensor, bits: int) -> torch.Tensor:
    shifted: torch.Tensor = (values >> bits) & (2 ** (64 - bits) - 1)
    return shifted


def _mixed_int(site: int) -> int:
    return int(_mixed(torch.tensor(_wrapped((site + 1) * _GAMMA))))


def _wrapped(value: int) -> int:
    """Return an integer modulo 2^64, as a signed number."""
    return (value + 2**63) % 2**64 - 2**63

"""A model: the next byte from the last eight, by one convolution. Plain torch, 124,000 parameters.

It has no `transformers` class behind it, so its saved folder says in `config.json` which loader
opens it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from fedsim import ConfigError, ModelConfig

from . import byte_encoder
from .byte_encoder import VOCABULARY_SIZE

NAME = "example-bytes"
_WIDTH, _LOOK_BACK = 96, 8
_SHAPES = {
    "embedding.weight": (VOCABULARY_SIZE, _WIDTH),
    "context.weight": (_WIDTH, _WIDTH, _LOOK_BACK),
    "context.bias": (_WIDTH,),
    "output.weight": (VOCABULARY_SIZE, _WIDTH),
    "output.bias": (VOCABULARY_SIZE,),
}


def load(
    config: ModelConfig, *, seed: int = 0, sequence_length: int = 64, device: str = "cpu"
) -> ByteModel:
    """Open a folder that `save` wrote, or start at random, the same for everybody.

    Raises:
        ConfigError: a key that means nothing here, or no parameter to train.
    """
    for key in ("lora_rank", "dropout", "pretraining_steps"):
        if value := getattr(config, key):
            raise ConfigError(f"model.{key} = {value!r}: {NAME!r} has none; leave the key out")
    saved = Path(config.name_or_path).expanduser() / "model.safetensors"
    weights = load_file(saved) if saved.exists() else _random_start()
    return ByteModel(config, weights, torch.device(device))


class ByteModel:
    """A `fedsim.LanguageModel`: parameters are values, and nothing is kept between calls."""

    vocabulary_size = VOCABULARY_SIZE
    unknown_token_id: int | None = None
    origin = "The start is random and tokens are bytes: no text was used for either."

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, torch.Tensor], device: torch.device
    ) -> None:
        self.name = config.name_or_path
        self.device = device
        self.encoder: Callable[[Sequence[str]], list[list[int]]] = byte_encoder.encode
        self.tokenizer_fingerprint = hashlib.sha256(b"bytes, 256 begins, 257 ends").hexdigest()
        self.num_parameters = sum(value.numel() for value in weights.values())
        pattern = "" if config.trainable == "all" else config.trainable
        self._trainable = [name for name in weights if re.search(pattern, name)]
        if not self._trainable:
            raise ConfigError(
                f"model.trainable = {pattern!r}: found in none of {', '.join(weights)}"
            )
        self._weights = {name: value.to(device) for name, value in weights.items()}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return, per text, its bytes between begin and end."""
        return self.encoder(texts)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        return byte_encoder.decode(ids)

    def initial_parameters(self) -> dict[str, torch.Tensor]:
        """Return copies of the trainable parameters, float32, on the CPU."""
        return {name: self._weights[name].to("cpu", copy=True) for name in self._trainable}

    def logits(self, parameters: Mapping[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
        """Return (batch, length, 258) for tokens (batch, length): from what came before alone."""
        weights = self._with(parameters)
        vectors = F.embedding(tokens, weights["embedding.weight"]).mT
        past = F.pad(vectors, (_LOOK_BACK - 1, 0))  # on the left: no look at the future
        context = F.conv1d(past, weights["context.weight"], weights["context.bias"]).mT
        return F.linear(F.gelu(context), weights["output.weight"], weights["output.bias"])

    def save(self, parameters: Mapping[str, torch.Tensor], folder: Path) -> None:
        """Write all weights, these parameters among them, and the name of the loader."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = self._with(parameters)
        whole = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
        save_file(whole, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"fedsim_model": NAME}), encoding="utf-8")

    def _with(self, parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if sorted(parameters) != sorted(self._trainable):
            raise ValueError(f"parameters: got {sorted(parameters)}, train {self._trainable}")
        return {**self._weights, **parameters}


def _random_start() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.zeros(shape)
        if name.endswith("bias")
        else torch.randn(shape, generator=generator) / (shape[1:].numel() ** 0.5)
        for name, shape in ((name, torch.Size(shape)) for name, shape in _SHAPES.items())
    }

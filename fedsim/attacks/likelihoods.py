"""Log-likelihoods of examples under a model's weights, cached on disk.

A file's name is a SHA-256 of the network, every bit of its weights, and of what the examples are,
so it never has to be refreshed. safetensors: nothing that executes when read.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from fedsim.data.store import Indices, TokenStore
from fedsim.errors import ConfigError
from fedsim.evaluation.scoring import ExampleScores, score_examples
from fedsim.language_model import LanguageModel, network_digest
from fedsim.tensors import Tensors
from fedsim.utils.files import write_atomically

_VERSION = 2  # raise it when the same weights and examples would score differently


@dataclass(frozen=True)
class Likelihoods:
    """Scores of the same examples of a store under any weights.

    Attributes:
        store: where the examples are.
        examples: indices of the store, int64; one that comes again is not scored again.
        folder: where scores are kept.
    """

    store: TokenStore
    examples: Indices
    folder: Path

    def scores(self, model: LanguageModel, parameters: Tensors) -> ExampleScores:
        """Return the scores of `parameters`, from disk where they have been computed before.

        Args:
            model: the network.
            parameters: what it computes with, the frozen ones left out.

        Raises:
            ConfigError: a log-likelihood is not finite: no statistic could be made of it.
        """
        _, first, numbers = np.unique(self.examples, return_index=True, return_inverse=True)
        order = np.argsort(first)
        examples = self.examples[first[order]]
        path = self.folder / f"{self._key(model, parameters, examples)}.safetensors"
        scores = _read(path, len(examples))
        if scores is None:
            scores = score_examples(model, parameters, self.store, examples)
            write_atomically(path, _written(scores))
        if not np.isfinite(scores.nats).all():
            raise ConfigError(
                f"{model.name}: {int((~np.isfinite(scores.nats)).sum())} of "
                f"{len(examples)} log-likelihoods are not finite: the model diverged, and "
                "there is nothing to attack"
            )
        places = np.argsort(order)[numbers]
        return ExampleScores(scores.nats[places], scores.correct[places], scores.tokens[places])

    def _key(self, model: LanguageModel, parameters: Tensors, examples: Indices) -> str:
        identity = [_VERSION, model.tokenizer_fingerprint, self.store.manifest["sha256"]]
        digest = hashlib.sha256(json.dumps(identity).encode())
        digest.update(network_digest(model, parameters).encode())
        digest.update(examples.tobytes())
        return digest.hexdigest()


def _written(scores: ExampleScores) -> bytes:
    return save(
        {
            "nats": torch.from_numpy(scores.nats),
            "correct": torch.from_numpy(scores.correct),
            "tokens": torch.from_numpy(scores.tokens),
        }
    )


def _read(path: Path, count: int) -> ExampleScores | None:
    """Return the cached scores, or None if there are none or the file is damaged."""
    try:
        arrays = {name: value.numpy() for name, value in load_file(path).items()}
        scores = ExampleScores(arrays["nats"], arrays["correct"], arrays["tokens"])
    except (OSError, SafetensorError, KeyError, TypeError):  # numpy has no bfloat16
        return None
    return scores if _sound(scores, count) else None


def _sound(scores: ExampleScores, count: int) -> bool:
    """Whether they can be scores of so many examples; a log-likelihood may be infinite or NaN."""
    parts = (scores.nats, scores.correct, scores.tokens)
    if {value.shape for value in parts} != {(count,)}:
        return False
    if [value.dtype for value in parts] != [np.float64, np.int64, np.int64]:
        return False
    right = (scores.correct >= 0) & (scores.correct <= scores.tokens)
    return bool(right.all()) and not bool((scores.nats < 0.0).any())

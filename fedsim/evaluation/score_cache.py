"""Scores of examples under a model's weights, kept on disk, half done ones too.

A file's name is a SHA-256 of the network, every bit of its weights, of the code that computes with
them, and of what the examples are, so it never has to be refreshed. safetensors: nothing that
executes when read.
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from fedsim.data.store import Indices, TokenStore
from fedsim.evaluation.scoring import ExampleScores, Scoring
from fedsim.language_model import LanguageModel, network_digest
from fedsim.materials import loader_name
from fedsim.registry import distribution
from fedsim.tensors import Tensors
from fedsim.utils.files import write_atomically
from fedsim.utils.machine import version

# Raise it when the same weights and examples would score differently, or in other passes.
_VERSION = 3
_SECONDS = 60.0  # between two writings of what is half done
_COMPUTE = ("torch", "transformers", "peft")


@dataclass(frozen=True)
class ScoreCache:
    """Scores of the examples of a store under any weights.

    What was cut off goes on where it was a minute before, and ends in the same bits.

    Attributes:
        store: where the examples are.
        folder: where scores are kept.
    """

    store: TokenStore
    folder: Path

    def scores(self, model: LanguageModel, parameters: Tensors, examples: Indices) -> ExampleScores:
        """Return the scores of examples, from disk where they have been computed before.

        Args:
            model: the network.
            parameters: what it computes with, the frozen ones left out.
            examples: indices of the store, int64; one that comes again is not scored again.
        """
        _, first, numbers = np.unique(examples, return_index=True, return_inverse=True)
        order = np.argsort(first)
        some = examples[first[order]]
        path = self.folder / f"{self._key(model, parameters, some)}.safetensors"
        scoring = _begun(path, model, self.store, some)
        if not scoring.is_done:
            written = time.monotonic()
            for _ in scoring.steps(parameters):
                if time.monotonic() - written >= _SECONDS:
                    write_atomically(path, _written(scoring))
                    written = time.monotonic()
            write_atomically(path, _written(scoring))
        places, scores = np.argsort(order)[numbers], scoring.scores
        return ExampleScores(scores.nats[places], scores.correct[places], scores.tokens[places])

    def _key(self, model: LanguageModel, parameters: Tensors, examples: Indices) -> str:
        identity = [_VERSION, model.name, model.tokenizer_fingerprint]
        # A choice by perplexity decides what is released, and noise is of these versions too.
        identity += [distribution("models", loader_name(model.name)), *map(version, _COMPUTE)]
        identity.append(self.store.manifest["sha256"])
        digest = hashlib.sha256(json.dumps(identity).encode())
        digest.update(network_digest(model, parameters).encode())
        digest.update(examples.tobytes())
        return digest.hexdigest()


def _written(scoring: Scoring) -> bytes:
    scores = scoring.scores
    return save(
        {
            "nats": torch.from_numpy(scores.nats),
            "correct": torch.from_numpy(scores.correct),
            "tokens": torch.from_numpy(scores.tokens),
            "passes": torch.tensor(scoring.passes),
        }
    )


def _begun(path: Path, model: LanguageModel, store: TokenStore, examples: Indices) -> Scoring:
    """Return a scoring that goes on where a kept one was; from the start where none is sound."""
    scoring = Scoring(model, store, examples)
    with suppress(OSError, SafetensorError, KeyError, TypeError):  # numpy has no bfloat16
        arrays = {name: value.numpy() for name, value in load_file(path).items()}
        scores = ExampleScores(arrays["nats"], arrays["correct"], arrays["tokens"])
        passes = arrays["passes"]
        if _sound(scores, len(examples)) and _counts(passes, scoring.all_passes):
            scoring.scores, scoring.passes = scores, int(passes)
    return scoring


def _sound(scores: ExampleScores, count: int) -> bool:
    """Whether they can be scores of so many examples; a log-likelihood may be infinite or NaN."""
    parts = (scores.nats, scores.correct, scores.tokens)
    if {value.shape for value in parts} != {(count,)}:
        return False
    if [value.dtype for value in parts] != [np.float64, np.int64, np.int64]:
        return False
    right = (scores.correct >= 0) & (scores.correct <= scores.tokens)
    return bool(right.all()) and not bool((scores.nats < 0.0).any())


def _counts(passes: npt.NDArray[Any], most: int) -> bool:
    return passes.dtype == np.int64 and passes.shape == () and 0 <= int(passes) <= most

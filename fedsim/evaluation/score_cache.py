"""Scores of examples under a model's weights, cached on disk.

A file's name is a SHA-256 of the network, its weights, the package versions and the examples, so
entries never become stale. The format is safetensors, which executes no code when read.
"""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from fedsim.data.selection import CohortRule, Losses
from fedsim.data.store import Indices, TokenStore
from fedsim.evaluation.scoring import ExampleScores, score_examples
from fedsim.language_model import LanguageModel, network_digest
from fedsim.materials import Materials, loader_name
from fedsim.registry import distribution
from fedsim.tensors import Tensors
from fedsim.utils.files import cache_dir, write_atomically
from fedsim.utils.machine import version

_log = logging.getLogger(__name__)

# Increase this when the same weights and examples would get other scores.
_VERSION = 4
_COMPUTE = ("torch", "transformers", "peft")


@dataclass(frozen=True)
class ScoreCache:
    """Cached scores of a store's examples.

    Attributes:
        store: token store of the examples.
        folder: folder of the cached scores.
    """

    store: TokenStore
    folder: Path

    def scores(self, model: LanguageModel, parameters: Tensors, examples: Indices) -> ExampleScores:
        """Return the scores of examples, from disk if they are cached.

        Args:
            model: the network.
            parameters: its trained weights, without frozen ones.
            examples: indices of the store, int64; repeated ones are scored once.
        """
        some, places = np.unique(examples, return_inverse=True)
        path = self.folder / f"{self._key(model, parameters, some)}.safetensors"
        scores = None
        with suppress(OSError, SafetensorError, TypeError):  # a damaged file is replaced
            scores = ExampleScores(**load_file(path))
        if scores is None:
            scores = score_examples(model, parameters, self.store, some)
            write_atomically(path, save(asdict(scores)))
        return ExampleScores(scores.nats[places], scores.correct[places], scores.tokens[places])

    def _key(self, model: LanguageModel, parameters: Tensors, examples: Indices) -> str:
        identity = [_VERSION, model.name, model.tokenizer_fingerprint]
        identity += [distribution("models", loader_name(model.name)), *map(version, _COMPUTE)]
        identity.append(self.store.manifest["sha256"])
        digest = hashlib.sha256(json.dumps(identity).encode())
        digest.update(network_digest(model, parameters).encode())
        digest.update(examples.tobytes())
        return digest.hexdigest()


def losses_for(materials: Materials, rule: CohortRule) -> Losses | None:
    """Return each training example's loss under the starting model, or None if `rule` needs none.

    Chua et al. 2024, §4.1, choose a user's records by their perplexity under the model before
    training. That model is public, so a user's scores depend only on this user's text. The losses
    of all examples of the store are cached, so that they serve all splits.

    Returns:
        Nats per predicted token, float32, in the order of `split.train_examples`; infinite for
        examples without predicted tokens.
    """
    if rule not in ("highest-perplexity", "lowest-perplexity"):
        return None
    model, store = materials.model, materials.store
    _log.info("%s: scores of all examples before training", model.name)
    cache = ScoreCache(store, cache_dir() / "scores")
    scores = cache.scores(model, model.initial_parameters(), np.arange(store.num_examples))
    losses = np.nan_to_num(scores.mean_nats(), nan=np.inf, posinf=np.inf).astype(np.float32)
    return losses[materials.split.train_examples]

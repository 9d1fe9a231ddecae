"""Losses of training examples under the starting model, cached on disk.

Chua et al. 2024, §4.1, choose a user's records by their perplexity under the model before
training. The starting model is public, so a user's scores depend on that user's text alone.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
from pathlib import Path

import numpy as np

from fedsim.data.selection import CohortRule, Losses
from fedsim.evaluation.scoring import score_examples
from fedsim.materials import Materials
from fedsim.utils import files as paths
from fedsim.utils.files import write_atomically

log = logging.getLogger(__name__)


def losses_for(materials: Materials, rule: CohortRule) -> Losses | None:
    """Return each training example's loss under the starting model, or None if `rule` needs none.

    Returns:
        Nats per predicted token, float32, in the order of `split.train_examples`; infinite where
        nothing is predicted. Those of all examples of the store are kept under the cache folder,
        and read from there the next time, whatever the split.
    """
    if rule not in ("highest-perplexity", "lowest-perplexity"):
        return None
    path = paths.cache_dir() / "starting-losses" / f"{_key(materials)}.npy"
    count = materials.store.num_examples
    losses = _cached(path, count)
    if losses is None:
        log.info("%s: scoring all examples before training", materials.model.name)
        start = materials.model.initial_parameters()
        scores = score_examples(materials.model, start, materials.store, np.arange(count))
        losses = np.nan_to_num(scores.mean_nats(), nan=np.inf, posinf=np.inf).astype(np.float32)
        write_atomically(path, _npy(losses))
    return losses[materials.split.train_examples]


def _cached(path: Path, count: int) -> Losses | None:
    """Return the cached losses, or None if there are none or the file is damaged."""
    try:
        losses: Losses = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception:  # numpy raises errors of many kinds for what is no array
        return None
    if losses.shape != (count,) or losses.dtype != np.float32:
        return None
    return losses if bool((losses >= 0.0).all()) else None  # false for NaN too


def _npy(values: Losses) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def _key(materials: Materials) -> str:
    """Return a SHA-256 (hex) of the text, the tokenizer and the weights, frozen ones included."""
    model, store = materials.model, materials.store
    identity = [model.name, model.tokenizer_fingerprint, store.manifest["sha256"]]
    return hashlib.sha256(json.dumps([*identity, materials.start_digest]).encode()).hexdigest()

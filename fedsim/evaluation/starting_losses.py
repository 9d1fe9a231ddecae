"""Losses of training examples under the starting model, kept on disk.

Chua et al. 2024, §4.1, choose a user's records by their perplexity under the model before
training. The starting model is public, so a user's scores depend on that user's text alone.
"""

from __future__ import annotations

import logging

import numpy as np

from fedsim.data.selection import CohortRule, Losses
from fedsim.evaluation.score_cache import ScoreCache
from fedsim.materials import Materials
from fedsim.utils import files as paths

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
    model, store = materials.model, materials.store
    log.info("%s: scores of all examples before training", model.name)
    cache = ScoreCache(store, paths.cache_dir() / "scores")
    scores = cache.scores(model, model.initial_parameters(), np.arange(store.num_examples))
    losses = np.nan_to_num(scores.mean_nats(), nan=np.inf, posinf=np.inf).astype(np.float32)
    return losses[materials.split.train_examples]

"""Evaluate a finished run in detail: tokens, users, head words, samples, personalisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.accounting import PROMISE
from fedsim.config import Config, FedAvg
from fedsim.data.store import Indices
from fedsim.errors import ConfigError
from fedsim.evaluation.generation import SAMPLE_TOKENS, SAMPLES, sample_texts
from fedsim.evaluation.head_words import head_word_histogram, most_frequent
from fedsim.evaluation.metrics import summary
from fedsim.evaluation.score_cache import ScoreCache
from fedsim.evaluation.scoring import owners
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials, load_beside, materials_of
from fedsim.registry import resolve
from fedsim.report.schema import load_report
from fedsim.runner.folder import RunFolder
from fedsim.tensors import Tensors
from fedsim.utils.files import cache_dir

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


Weights = tuple[LanguageModel, Tensors]
"""A network and the parameters to evaluate."""


def evaluate_run(run_dir: Path, *, personalisation: FedAvg | None = None) -> dict[str, Any]:
    """Return the result of `fedsim evaluate`.

    Everything except the samples is computed on private text and not protected by the privacy
    guarantee. Scores are cached, so an interrupted evaluation continues.

    Args:
        run_dir: folder of a finished run.
        personalisation: local training on half of each held-out user's text; None: none.

    Raises:
        ConfigError: no finished run, or no held-out user for personalisation.
    """
    folder = RunFolder(run_dir)
    folder.check_finished()
    config = folder.read_config()
    materials = materials_of(config, folder.data_seed(config))
    folder.check_texts(materials)
    saved = load_beside(config, folder.served(config))
    stages: dict[str, Weights] = {
        "initial": (materials.model, materials.model.initial_parameters()),
        "final": (saved, saved.initial_parameters()),
    }
    split, store = materials.split, materials.store
    everyone = [store.user_examples(int(user)) for user in split.held_out_users]
    texts = {
        "held_out_examples": split.held_out_examples,
        "held_out_users": np.concatenate([*everyone, np.zeros(0, np.int64)]),
    }
    frequent = most_frequent(store, split.train_examples, materials.model.vocabulary_size)
    cache = ScoreCache(store, cache_dir() / "scores")
    longest = min(SAMPLE_TOKENS, config.data.sequence_length)
    result: dict[str, Any] = {
        "run": str(run_dir),
        "stages": {
            name: {
                **{what: _scores(weights, cache, part) for what, part in texts.items()},
                "head_words": head_word_histogram(
                    *weights, store, split.held_out_examples, frequent
                ),
                "samples": sample_texts(*weights, SAMPLES, longest, config.seed),
            }
            for name, weights in stages.items()
        },
        "note": "computed on private text, not protected by the privacy guarantee"
        + (", except for the samples" if _is_promised(folder) else "; nor are the samples"),
    }
    if personalisation is not None:
        if config.model.merged:  # personalisation trains all parameters of a saved whole model
            start = load_beside(config, config.model.start)
            stages["initial"] = (start, start.initial_parameters())
        result["personalisation"] = _personalised(config, materials, stages, personalisation)
    return result


def _is_promised(folder: RunFolder) -> bool:
    """Whether a privacy guarantee covers the model, and so the texts that it generates.

    False if the starting model was trained on other private text. In a search only the winner has
    a promise, written when all trials are over.
    """
    promises = (folder.model / PROMISE, folder.adapter / PROMISE)
    if not any(path.exists() for path in promises):
        return False
    privacy = load_report(folder.path).privacy
    uncovered = privacy.hypothetical or privacy.earlier_training
    return privacy.epsilon is not None and not uncovered


def _scores(weights: Weights, cache: ScoreCache, examples: Indices) -> dict[str, Any]:
    """Return means over tokens and over users, and quantiles of the users' losses."""
    scores = cache.scores(*weights, examples)
    users = owners(cache.store, examples)
    by_user = scores.summed_by(np.unique(users, return_inverse=True)[1])
    losses = by_user.mean_nats()[by_user.tokens > 0]
    # `unit_loss` is comparable with a training loss only.
    means = summary(scores, users).model_dump(exclude={"unit_loss"})
    return {**means, "user_loss_quantiles": _quantiles(losses)}


def _quantiles(values: npt.NDArray[np.float64]) -> dict[str, float]:
    if not len(values):
        return {}
    return {f"{q:g}": float(np.quantile(values, q)) for q in _QUANTILES}


def _personalised(
    config: Config,
    materials: Materials,
    stages: dict[str, Weights],
    personalisation: FedAvg,
) -> dict[str, Any]:
    users = materials.split.held_out_users
    if not len(users):
        raise ConfigError(
            f"data.held_out_users = {config.data.held_out_users}: the run has no held-out users to "
            "personalise for; train with a fraction above 0"
        )
    personalise = resolve("analyses", "personalisation", "--personalise")
    shown = {"epochs", "batch_size", "learning_rate"}
    answer: dict[str, Any] = {"settings": personalisation.model_dump(include=shown)}
    for name, weights in stages.items():
        result = personalise(
            *weights,
            materials.store,
            users,
            training=personalisation,
            seed=materials.seed,
        )
        answer |= {"users": len(result.users), "users_left_out": result.num_left_out}
        answer[name] = {
            "parameters_moved": sum(value.numel() for value in weights[1].values()),
            "without": _both_ways(result.without, result.tokens),
            "personalised": _both_ways(result.after, result.tokens),
            "users_helped": int((result.after < result.without).sum()),
            "users_diverged": int((~np.isfinite(result.after[result.tokens > 0])).sum()),
        }
    return answer


def _both_ways(losses: npt.NDArray[np.float64], tokens: Indices) -> dict[str, float | None]:
    """Return the means of the users' losses over users and over tokens."""
    if not tokens.sum():
        return {"user_loss": None, "loss": None}
    seen = tokens > 0
    return {
        "user_loss": float(losses[seen].mean()),
        "loss": float(np.average(losses[seen], weights=tokens[seen])),
    }

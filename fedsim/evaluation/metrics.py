"""Utility on held-out text: loss, perplexity, top-1 accuracy, over tokens and over users."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from fedsim.data.store import Indices, TokenStore
from fedsim.evaluation.scoring import ExampleScores, owners, score_examples
from fedsim.language_model import LanguageModel
from fedsim.report.schema import HeldOut, Scores
from fedsim.tensors import Tensors

_NO_MEANS = dict.fromkeys(HeldOut.model_fields, math.nan)
NO_SCORES = Scores.model_validate({**_NO_MEANS, "tokens": 0, "users": 0})


def evaluate(
    model: LanguageModel,
    parameters: Tensors,
    store: TokenStore,
    examples: Indices,
    unit: Literal["user", "example"] = "user",
) -> Scores:
    """Score `parameters` on examples of the store; the result is reproducible bit for bit."""
    scores = score_examples(model, parameters, store, examples)
    return summary(scores, owners(store, examples), unit)


def summary(
    scores: ExampleScores, users: Indices, unit: Literal["user", "example"] = "user"
) -> Scores:
    """Return the means of example scores.

    Args:
        scores: scores of the examples.
        users: (examples,), user of each example.
        unit: unit of `unit_loss`.
    """
    count = int(scores.tokens.sum())
    if count == 0:
        return NO_SCORES
    places = np.unique(users, return_inverse=True)[1]
    by_user = scores.summed_by(places)
    by_example = scores.nats / scores.tokens.clip(min=1)  # 0 without a token, as in training
    by_unit = by_example
    if unit == "user":
        by_unit = np.bincount(places, by_example) / np.bincount(places)
    seen = by_user.tokens > 0
    loss = math.fsum(scores.nats) / count
    return Scores(
        loss=loss,
        perplexity=perplexity(loss),
        accuracy_top1=int(scores.correct.sum()) / count,
        tokens=count,
        user_loss=float(by_user.mean_nats()[seen].mean()),
        user_accuracy_top1=float((by_user.correct[seen] / by_user.tokens[seen]).mean()),
        users=int(seen.sum()),
        unit_loss=float(by_unit.mean()),
    )


def perplexity(loss: float) -> float:
    """Return exp(loss), or infinity beyond float64's range."""
    return math.inf if loss >= 700 else math.exp(loss)

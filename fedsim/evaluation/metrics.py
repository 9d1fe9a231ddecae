"""Utility on held-out text: loss, perplexity, top-1 accuracy, over tokens and over users."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedsim.data.store import Indices, TokenStore
from fedsim.evaluation.scoring import ExampleScores, owners, score_examples
from fedsim.language_model import LanguageModel
from fedsim.tensors import Tensors


@dataclass(frozen=True)
class Evaluation:
    """Means over examples, with equal weight per token and with equal weight per user.

    Attributes:
        loss: nats per predicted token; NaN if there are none.
        perplexity: exp(loss), infinite on overflow.
        accuracy_top1: share of predicted tokens that got the highest logit; see `ExampleScores`.
        tokens: number of predicted tokens.
        user_loss: mean over users of the user's nats per predicted token.
        user_accuracy_top1: mean over users of the user's accuracy.
        users: number of users with a predicted token.
        unit_loss: mean over units (users, or examples) of the unit's mean example loss, as in a
            cohort's training loss.
    """

    loss: float
    perplexity: float
    accuracy_top1: float
    tokens: int
    user_loss: float
    user_accuracy_top1: float
    users: int
    unit_loss: float


NO_SCORES = Evaluation(math.nan, math.nan, math.nan, 0, math.nan, math.nan, 0, math.nan)


def evaluate(
    model: LanguageModel,
    parameters: Tensors,
    store: TokenStore,
    examples: Indices,
    unit: Literal["user", "example"] = "user",
) -> Evaluation:
    """Score `parameters` on examples of the store; the result is reproducible bit for bit."""
    scores = score_examples(model, parameters, store, examples)
    return summary(scores, owners(store, examples), unit)


def summary(
    scores: ExampleScores, users: Indices, unit: Literal["user", "example"] = "user"
) -> Evaluation:
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
    return Evaluation(
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

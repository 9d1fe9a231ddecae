"""Utility on held-out text: loss, perplexity, top-1 accuracy, over tokens and over users."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedsim.data.store import Indices, TokenStore
from fedsim.evaluation.scoring import ExampleScores, owners, score_examples
from fedsim.language_model import LanguageModel
from fedsim.tensors import Tensors


@dataclass(frozen=True)
class Evaluation:
    """Means over some examples, weighted both ways: every token alike, and every user alike.

    Attributes:
        loss: nats per predicted token; NaN when there are none.
        perplexity: exp(loss), infinite when that overflows.
        accuracy_top1: share of tokens that got the highest logit; see `ExampleScores`.
        tokens: predicted tokens.
        user_loss: mean over users of each one's nats per predicted token.
        user_accuracy_top1: mean over users of each one's accuracy.
        users: users with a predicted token.
    """

    loss: float
    perplexity: float
    accuracy_top1: float
    tokens: int
    user_loss: float
    user_accuracy_top1: float
    users: int


NO_SCORES = Evaluation(math.nan, math.nan, math.nan, 0, math.nan, math.nan, 0)


def evaluate(
    model: LanguageModel, parameters: Tensors, store: TokenStore, examples: Indices
) -> Evaluation:
    """Score `parameters` on the given examples of the store; same input, same bits."""
    return summary(score_examples(model, parameters, store, examples), owners(store, examples))


def summary(scores: ExampleScores, users: Indices) -> Evaluation:
    """Return the means of example scores; `users` (examples,) says whose each example is."""
    count = int(scores.tokens.sum())
    if count == 0:
        return NO_SCORES
    by_user = scores.summed_by(np.unique(users, return_inverse=True)[1])
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
    )


def perplexity(loss: float) -> float:
    """Return exp(loss), infinite where float64 ends."""
    return math.inf if loss >= 700 else math.exp(loss)

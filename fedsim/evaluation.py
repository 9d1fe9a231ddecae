"""Utility on held-out text: loss, perplexity, top-1 accuracy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fedsim.data.store import TokenStore
from fedsim.language_model import LanguageModel
from fedsim.losses import predicted_mask, token_losses
from fedsim.tensors import Tensors

# Tokens a forward pass holds at once; logits over the vocabulary are what costs memory.
_TOKENS_A_BATCH = 4096


@dataclass(frozen=True)
class Evaluation:
    """Means over all predicted tokens of some examples.

    Attributes:
        loss: nats per predicted token; NaN when there are none.
        perplexity: exp(loss), infinite when that overflows.
        accuracy_top1: share of tokens that got the highest logit. A true token outside the
            vocabulary counts as wrong, whatever was predicted (McMahan et al. 2018, App. B).
        tokens: predicted tokens.
    """

    loss: float
    perplexity: float
    accuracy_top1: float
    tokens: int


@torch.no_grad()
def evaluate(
    model: LanguageModel,
    parameters: Tensors,
    store: TokenStore,
    examples: npt.NDArray[np.int64],
) -> Evaluation:
    """Score `parameters` on the given examples of the store.

    Batches are formed by length, so that little is padded; sums are float64 in that fixed order,
    so the same parameters give the same bits.
    """
    lengths = store.lengths(examples)
    by_length = examples[np.argsort(lengths, kind="stable")]
    on_device = {name: value.to(model.device) for name, value in parameters.items()}
    loss, correct, count = 0.0, 0, 0
    start = 0
    while start < len(by_length):
        longest = int(store.lengths(by_length[start : start + 256]).max())
        stop = start + max(1, min(256, _TOKENS_A_BATCH // longest))
        batch_loss, batch_correct, batch_count = _score(
            model, on_device, store, by_length[start:stop]
        )
        loss, correct, count = loss + batch_loss, correct + batch_correct, count + batch_count
        start = stop
    if count == 0:
        return Evaluation(math.nan, math.nan, math.nan, 0)
    mean = loss / count
    return Evaluation(mean, math.exp(mean) if mean < 700 else math.inf, correct / count, count)


def _score(
    model: LanguageModel, parameters: Tensors, store: TokenStore, examples: npt.NDArray[np.int64]
) -> tuple[float, int, int]:
    padded, lengths = store.padded(examples)
    tokens = torch.from_numpy(padded).to(model.device)
    logits = model.logits(parameters, tokens)
    mask = predicted_mask(tokens, torch.from_numpy(lengths).to(model.device))
    targets = tokens[:, 1:]
    right = (logits[:, :-1].argmax(dim=-1) == targets) & mask
    if model.unknown_token_id is not None:
        right &= targets != model.unknown_token_id
    loss = (token_losses(logits, tokens).double() * mask).sum()
    return float(loss), int(right.sum()), int(mask.sum())

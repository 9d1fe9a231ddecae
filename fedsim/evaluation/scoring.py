"""Score examples for evaluation and attacks: loss, correct predictions and number of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fedsim.data.store import Indices, TokenStore
from fedsim.evaluation.losses import predicted_mask, token_ids, token_losses
from fedsim.language_model import LanguageModel
from fedsim.tensors import Tensors
from fedsim.utils.terminal import every_half_minute

# Maximum tokens and logits of a forward pass. Two copies of the logits need most of the memory.
_TOKENS_A_BATCH, _LOGITS_A_BATCH = 4096, 2**25
_MOST_EXAMPLES = 256


@dataclass(frozen=True, eq=False)
class ExampleScores:
    """Scores of examples, one entry each, in the given order.

    Attributes:
        nats: summed negative log-likelihood of the predicted tokens, float64.
        correct: number of predicted tokens that got the highest logit, int64. A true token outside
            the vocabulary always counts as wrong (McMahan et al. 2018, App. B).
        tokens: number of predicted tokens, int64: all except the first and context tokens.
    """

    nats: npt.NDArray[np.float64]
    correct: Indices
    tokens: Indices

    def summed_by(self, groups: Indices) -> ExampleScores:
        """Return one entry per group; `groups` (examples,) is the group of each example, from 0."""
        count = int(groups.max()) + 1 if len(groups) else 0
        nats = np.bincount(groups, self.nats, count)
        correct, tokens = (
            np.bincount(groups, values, count).astype(np.int64)
            for values in (self.correct, self.tokens)
        )
        return ExampleScores(nats.astype(np.float64), correct, tokens)

    def mean_nats(self) -> npt.NDArray[np.float64]:
        """Return the loss of each entry, in nats per predicted token; NaN without such tokens."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.nats / self.tokens


def score_examples(
    model: LanguageModel, parameters: Tensors, store: TokenStore, examples: Indices
) -> ExampleScores:
    """Score `parameters` on examples of the store.

    Batches group examples by length to limit padding. The result is reproducible bit for bit.
    """
    lengths, count = store.lengths(examples), len(examples)
    nats, correct, tokens = np.zeros(count), np.zeros(count, np.int64), np.zeros(count, np.int64)
    on_device = {name: value.to(model.device) for name, value in parameters.items()}
    all_tokens, done = int(lengths.sum()), 0
    tell = every_half_minute("scoring (not protected by the privacy guarantee)")
    for places in batches_by_length(lengths, model.vocabulary_size):
        padded = store.padded(examples[places])
        nats[places], correct[places], tokens[places] = score_padded(model, on_device, *padded)
        done += int(lengths[places].sum())  # count tokens, because short examples come first
        tell(f"{100 * done // all_tokens} % of {all_tokens:,} tokens of {count:,} texts")
    return ExampleScores(nats, correct, tokens)


def owners(store: TokenStore, examples: Indices) -> Indices:
    """Return the store's user of each example: (examples,) int64."""
    return np.searchsorted(store.user_offsets, examples, side="right") - 1


def batches_by_length(lengths: Indices, vocabulary_size: int) -> Iterator[Indices]:
    """Yield the positions of each batch's examples, shortest examples first."""
    max_tokens = min(_TOKENS_A_BATCH, _LOGITS_A_BATCH // vocabulary_size)
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = int(lengths[order[start : start + _MOST_EXAMPLES]].max())
        stop = start + max(1, min(_MOST_EXAMPLES, max_tokens // longest))
        yield order[start:stop]
        start = stop


@torch.no_grad()
def score_padded(
    model: LanguageModel, parameters: Tensors, padded: Indices, lengths: Indices
) -> tuple[npt.NDArray[np.float64], Indices, Indices]:
    """Return nats, right predictions and predicted tokens per sequence, from one forward pass.

    Args:
        model: the network.
        parameters: its weights, on its device.
        padded: (sequences, longest length) tokens, padded on the right.
        lengths: (sequences,) number of tokens.
    """
    tokens = torch.from_numpy(padded).to(model.device)
    ids = token_ids(tokens)
    logits = model.logits(parameters, ids)
    mask = predicted_mask(tokens, torch.from_numpy(lengths).to(model.device))
    targets = ids[:, 1:]
    right = (logits[:, :-1].argmax(dim=-1) == targets) & mask
    if model.unknown_token_id is not None:
        right &= targets != model.unknown_token_id
    nats = (token_losses(logits, tokens).double() * mask).sum(dim=1)
    correct, predicted = right.sum(dim=1), mask.sum(dim=1)
    return nats.cpu().numpy(), correct.cpu().numpy(), predicted.cpu().numpy()

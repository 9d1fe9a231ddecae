"""Score examples: loss, correct predictions and tokens of each, for evaluation and attacks."""

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

# Tokens of a forward pass; logits over a large vocabulary, of which there are two copies at once,
# are what costs memory.
_TOKENS_A_BATCH, _LOGITS_A_BATCH = 4096, 2**25
_MOST_EXAMPLES = 256


@dataclass(frozen=True, eq=False)
class ExampleScores:
    """Scores of examples, one entry each, in the order given.

    Attributes:
        nats: summed negative log-likelihood of the predicted tokens, float64.
        correct: tokens that got the highest logit, int64. A true token outside the vocabulary
            counts as wrong, whatever was predicted (McMahan et al. 2018, App. B).
        tokens: predicted tokens that count, int64: all but an example's first and context tokens.
    """

    nats: npt.NDArray[np.float64]
    correct: Indices
    tokens: Indices

    def summed_by(self, groups: Indices) -> ExampleScores:
        """Return one entry a group; `groups` (examples,) has the group of each, from 0 on."""
        count = int(groups.max()) + 1 if len(groups) else 0
        nats = np.bincount(groups, self.nats, count)
        correct, tokens = (
            np.bincount(groups, values, count).astype(np.int64)
            for values in (self.correct, self.tokens)
        )
        return ExampleScores(nats.astype(np.float64), correct, tokens)

    def mean_nats(self) -> npt.NDArray[np.float64]:
        """Return the loss of each entry, nats a predicted token; NaN where none is predicted."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.nats / self.tokens


def score_examples(
    model: LanguageModel, parameters: Tensors, store: TokenStore, examples: Indices
) -> ExampleScores:
    """Score `parameters` on the given examples of the store.

    Batches are formed by length, so that little is padded; the same parameters on the same
    examples give the same bits.
    """
    lengths, count = store.lengths(examples), len(examples)
    nats, correct, tokens = np.zeros(count), np.zeros(count, np.int64), np.zeros(count, np.int64)
    on_device = {name: value.to(model.device) for name, value in parameters.items()}
    all_tokens, done = int(lengths.sum()), 0
    tell = every_half_minute("scoring (not protected by the privacy guarantee)")
    for places in batches_by_length(lengths, model.vocabulary_size):
        padded = store.padded(examples[places])
        nats[places], correct[places], tokens[places] = score_padded(model, on_device, *padded)
        done += int(lengths[places].sum())  # not examples: the short ones come first
        tell(f"{100 * done // all_tokens} % of {all_tokens:,} tokens of {count:,} texts")
    return ExampleScores(nats, correct, tokens)


def owners(store: TokenStore, examples: Indices) -> Indices:
    """Return the store's user of each example: (examples,) int64."""
    return np.searchsorted(store.user_offsets, examples, side="right") - 1


def batches_by_length(lengths: Indices, vocabulary_size: int) -> Iterator[Indices]:
    """Yield the places of examples that go through the network together, shortest ones first."""
    most = min(_TOKENS_A_BATCH, _LOGITS_A_BATCH // vocabulary_size)
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = int(lengths[order[start : start + _MOST_EXAMPLES]].max())
        stop = start + max(1, min(_MOST_EXAMPLES, most // longest))
        yield order[start:stop]
        start = stop


@torch.no_grad()
def score_padded(
    model: LanguageModel, parameters: Tensors, padded: Indices, lengths: Indices
) -> tuple[npt.NDArray[np.float64], Indices, Indices]:
    """Return nats, right predictions and predicted tokens of sequences, in one forward pass.

    Args:
        model: the network.
        parameters: its weights, on its device.
        padded: (sequences, longest of them) tokens, padded on the right.
        lengths: (sequences,).
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

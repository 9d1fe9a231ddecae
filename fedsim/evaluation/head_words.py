"""Share of the most frequent words in predictions and texts (McMahan et al. 2018, Table 3)."""

from __future__ import annotations

import numpy as np
import torch

from fedsim.data.store import Indices, TokenStore
from fedsim.evaluation.losses import predicted_mask, token_ids
from fedsim.evaluation.scoring import batches_by_length
from fedsim.language_model import LanguageModel
from fedsim.tensors import Tensors

TOP = 10
HEADS = (10, 50, 100)


def most_frequent(store: TokenStore, examples: Indices, vocabulary_size: int) -> Indices:
    """Return token ids in order of falling frequency among the predicted tokens.

    The result is private if the text is.
    """
    counts = np.zeros(vocabulary_size, np.int64)
    for places in batches_by_length(store.lengths(examples), vocabulary_size):
        tokens, lengths = store.padded(examples[places])
        counted = predicted_mask(torch.from_numpy(tokens), torch.from_numpy(lengths)).numpy()
        counts += np.bincount(tokens[:, 1:][counted], minlength=vocabulary_size)
    return np.argsort(-counts, kind="stable")


@torch.no_grad()
def head_word_histogram(
    model: LanguageModel,
    parameters: Tensors,
    store: TokenStore,
    examples: Indices,
    frequent: Indices,
) -> dict[int, list[int]]:
    """Count how many of the ten likeliest tokens are among the n most frequent, per prediction.

    Args:
        model: the network.
        parameters: weights of the network.
        store: token store of the examples.
        examples: indices of examples; each predicted token is one count.
        frequent: token ids in order of falling frequency, from `most_frequent`.

    Returns:
        n (10, 50 or 100) to eleven counts, for 0, 1, … 10 of the ten likeliest tokens.
    """
    on_device = {name: value.to(model.device) for name, value in parameters.items()}
    rank = torch.empty(len(frequent), dtype=torch.int64)
    rank[torch.from_numpy(frequent.copy())] = torch.arange(len(frequent))
    counts = {head: torch.zeros(TOP + 1, dtype=torch.int64) for head in HEADS}
    for places in batches_by_length(store.lengths(examples), model.vocabulary_size):
        padded, lengths = (torch.from_numpy(part) for part in store.padded(examples[places]))
        logits = model.logits(on_device, token_ids(padded).to(model.device))[:, :-1]
        likeliest = logits.topk(min(TOP, logits.shape[-1]), dim=-1).indices.cpu()
        ranks = rank[likeliest[predicted_mask(padded, lengths)]]
        for head, histogram in counts.items():
            histogram.add_(torch.bincount((ranks < head).sum(dim=1), minlength=TOP + 1))
    return {head: histogram.tolist() for head, histogram in counts.items()}

"""Are the weights that are served the weights that were trained? Asked before a run ends.

People have trained adapters for days that the saved folder did not contain, or that the network
never used. Both are seen by scoring a few examples three times.
"""

from __future__ import annotations

import numpy as np
import torch

from fedsim.data.store import Indices, TokenStore
from fedsim.language_model import LanguageModel
from fedsim.scoring import score_examples
from fedsim.tensors import Tensors

_EXAMPLES = 32
# Of an example's nats: merging adapters rounds weights, and kernels sum in another order.
_RELATIVE = 1e-3


def check_served(
    model: LanguageModel,
    parameters: Tensors,
    saved: LanguageModel,
    store: TokenStore,
    examples: Indices,
) -> None:
    """Compare the log-likelihoods of a few examples under three sets of weights.

    Args:
        model: the one that was trained; its initial parameters are where training began.
        parameters: what was trained.
        saved: what was written, read back.
        store: holds the examples.
        examples: any; the first few are taken, and with none there is nothing to compare.

    Raises:
        RuntimeError: the folder holds other weights than were trained, or what was trained has no
            effect on the network's output.
    """
    some = examples[:_EXAMPLES]
    if not len(some):
        return
    trained = score_examples(model, parameters, store, some).nats
    if not np.isfinite(trained).all():
        return  # a diverged model: nothing to compare, and its evaluation says so
    served = score_examples(saved, saved.initial_parameters(), store, some).nats
    if not np.allclose(trained, served, rtol=_RELATIVE, atol=_RELATIVE, equal_nan=True):
        apart = float(np.abs(trained - served).max())
        raise RuntimeError(
            f"model/: an example's log-likelihood under the saved weights is {apart:.3g} nats "
            "away from that under the trained ones; the folder does not hold what was trained"
        )
    start = model.initial_parameters()
    if all(torch.equal(start[name], value.cpu()) for name, value in parameters.items()):
        return
    if np.array_equal(score_examples(model, start, store, some).nats, trained):
        raise RuntimeError(
            "the trained parameters differ from the starting ones and yet every log-likelihood "
            "is the same: the network does not use what model.trainable and model.lora_rank chose"
        )

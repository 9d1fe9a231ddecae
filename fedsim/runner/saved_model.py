"""Save the trained model, and check that the saved model computes the same losses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import torch

from fedsim.data.store import Indices, TokenStore
from fedsim.errors import SavedModelError
from fedsim.evaluation.scoring import score_examples
from fedsim.language_model import AdapterModel, LanguageModel
from fedsim.tensors import Tensors
from fedsim.utils.files import folder_beside, naming, rename_synced, sync_all

_EXAMPLES = 32
# Relative tolerance of an example's nats: merging rounds weights, and kernels sum in another order.
_RELATIVE = 1e-3


def save_model(model: LanguageModel, parameters: Tensors, folder: Path) -> None:
    """Save the whole network in `folder`; see `_save`."""
    _save(lambda new: model.save(parameters, new), folder)


def save_adapter(model: LanguageModel, parameters: Tensors, folder: Path) -> None:
    """Save the trained parameters as a peft adapter, if the model `is_adapter`; see `_save`."""
    if getattr(model, "is_adapter", False):
        _save(lambda new: cast(AdapterModel, model).save_adapter(parameters, new), folder)


def _save(write: Callable[[Path], None], folder: Path) -> None:
    """Write to a hidden folder beside `folder`, sync it, then rename it to `folder`.

    An existing folder is moved away first. So for a moment there is no folder, but never a mixture.

    Raises:
        OSError: the disk is full or cannot be written; the message names `folder`.
    """
    with naming(folder), folder_beside(folder) as new:
        write(new)
        sync_all(new)
        if not folder.exists():
            rename_synced(new, folder)
            return
        with folder_beside(folder.with_name(f"{folder.name}.old")) as old:
            folder.rename(old)  # an empty folder may be replaced
            rename_synced(new, folder)


def check_served(
    model: LanguageModel,
    parameters: Tensors,
    saved: LanguageModel,
    store: TokenStore,
    examples: Indices,
) -> None:
    """Compare the log-likelihoods of a few examples under three sets of weights.

    Args:
        model: the trained network; its initial parameters are those before training.
        parameters: the trained parameters.
        saved: the saved model, read back.
        store: token store of the examples.
        examples: indices of examples; the first few are used. Without examples nothing is checked.

    Raises:
        SavedModelError: the saved weights differ from the trained weights, or the trained
            parameters have no effect on the network's output.
    """
    some = examples[:_EXAMPLES]
    if not len(some):
        return
    trained = score_examples(model, parameters, store, some).nats
    if not np.isfinite(trained).all():
        return  # a diverged model, which the evaluation reports
    served = score_examples(saved, saved.initial_parameters(), store, some).nats
    if not np.allclose(trained, served, rtol=_RELATIVE, atol=_RELATIVE, equal_nan=True):
        distance = float(np.abs(trained - served).max())
        raise SavedModelError(
            f"an example's log-likelihood under the saved weights (model/, or adapter/ on its "
            f"base) differs by {distance:.3g} nats from that under the trained weights: the saved "
            "model is not the trained model"
        )
    start = model.initial_parameters()
    if all(torch.equal(start[name], value.cpu()) for name, value in parameters.items()):
        return
    if np.array_equal(score_examples(model, start, store, some).nats, trained):
        raise SavedModelError(
            "the parameters changed in training, but no log-likelihood changed: the network does "
            "not use the parameters that model.trainable and model.lora_rank chose"
        )

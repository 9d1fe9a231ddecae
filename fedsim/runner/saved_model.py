"""Save the trained model, and check that the saved one computes the same losses."""

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
# Of an example's nats: merging adapters rounds weights, and kernels sum in another order.
_RELATIVE = 1e-3


def save_model(model: LanguageModel, parameters: Tensors, folder: Path) -> None:
    """Save the whole network in `folder`; see `_save`."""
    _save(lambda new: model.save(parameters, new), folder)


def save_adapter(model: LanguageModel, parameters: Tensors, folder: Path) -> None:
    """Save what was trained as an adapter of peft, where the model `is_adapter`; see `_save`."""
    if getattr(model, "is_adapter", False):
        _save(lambda new: cast(AdapterModel, model).save_adapter(parameters, new), folder)


def _save(write: Callable[[Path], None], folder: Path) -> None:
    """Write into a hidden folder beside `folder`, and rename that when it is on the disk.

    A folder that is there already makes way first: for a moment there is none, never a mixture.

    Raises:
        OSError: the disk is full or cannot be written; it names `folder`.
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
        model: the one that was trained; its initial parameters are where training began.
        parameters: what was trained.
        saved: what was written, read back.
        store: holds the examples.
        examples: any; the first few are taken, and with none there is nothing to compare.

    Raises:
        SavedModelError: the folder holds other weights than were trained, or what was trained has
            no effect on the network's output.
    """
    some = examples[:_EXAMPLES]
    if not len(some):
        return
    trained = score_examples(model, parameters, store, some).nats
    if not np.isfinite(trained).all():
        return  # a diverged model: nothing to compare, and its evaluation says so
    served = score_examples(saved, saved.initial_parameters(), store, some).nats
    if not np.allclose(trained, served, rtol=_RELATIVE, atol=_RELATIVE, equal_nan=True):
        distance = float(np.abs(trained - served).max())
        raise SavedModelError(
            f"an example's log-likelihood under what the run saved (model/, or adapter/ on its "
            f"base) is {distance:.3g} nats away from that under the trained weights: what is "
            "saved does not hold what was trained"
        )
    start = model.initial_parameters()
    if all(torch.equal(start[name], value.cpu()) for name, value in parameters.items()):
        return
    if np.array_equal(score_examples(model, start, store, some).nats, trained):
        raise SavedModelError(
            "the trained parameters differ from the starting ones and yet every log-likelihood "
            "is the same: the network does not use what model.trainable and model.lora_rank chose"
        )

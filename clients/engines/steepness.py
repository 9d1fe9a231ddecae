"""Networks that make much of a last bit: each unit is then computed alone.

A kernel may round a row of a product otherwise beside other rows, on several threads for instance,
so the last bits of a unit's gradient may depend on who shares its pass. Most networks pass such a
bit on as it is. A steep one, as with sharp attention or a recurrence that grows, makes more of it
from layer to layer, up to a whole gradient; then others' gradients would move with who is there,
which no clip bounds.
"""

from __future__ import annotations

import logging
import math
from weakref import ref

import torch
from torch import nn

from fedsim.clients.models.lstm_recurrence import RECURRENT
from fedsim.clients.models.mixed_precision import in_float32
from fedsim.clients.models.transformers_model import max_positions
from fedsim.language_model import LanguageModel, made_up_text, module_of
from fedsim.tensors import Tensors

log = logging.getLogger(__name__)

_TOKENS = 64  # of the made-up text
_SHORT = 8  # of one for a network that has fewer positions and does not say so
_LONGEST = 512  # of one for a recurrence, which is the steeper the longer: as long as the data's
_CHANGE = 2.0**-14  # of its embeddings: far above rounding, far below what bends a network

MOST = 8.0
"""Networks up to here share passes: ordinary ones are below half of it; a recurrence whose sum
moved beyond the bound was at more than a thousand times of it."""


@torch.no_grad()
def steepness(model: LanguageModel, parameters: Tensors) -> float:
    """Return how many times a relative change of a text's embeddings grows up to the logits.

    Of a made-up text, and up to the gradient of its loss by the logits, whichever grows more: it
    depends on the network and its parameters alone, so no private text decides how anything is
    computed. Infinite where logits are not finite, or nothing is embedded.
    """
    module = module_of(model)
    positions = max_positions(module)
    longest = _TOKENS
    if any(isinstance(part, RECURRENT) for part in module.modules()):
        longest = min(getattr(model, "sequence_length", _TOKENS), _LONGEST)
    if positions is not None:
        return _of_text(model, parameters, min(longest, positions))
    try:
        return _of_text(model, parameters, longest)
    except (RuntimeError, LookupError):  # a table of positions that nothing tells of
        return _of_text(model, parameters, _SHORT)


def _of_text(model: LanguageModel, parameters: Tensors, size: int) -> float:
    text = made_up_text(model, size, 0)[0]
    changed = []

    def change(module: nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
        if len(output) != 2:  # positions, which all texts share
            return output
        changed.append(module)
        source = torch.Generator().manual_seed(0)
        signs = torch.randint(0, 2, output.shape[1:], generator=source).mul_(2).sub_(1)
        return torch.stack([output[0], output[1] * (1.0 + _CHANGE * signs.to(output.device))])

    embeddings = [part for part in module_of(model).modules() if isinstance(part, nn.Embedding)]
    hooks = [part.register_forward_hook(change) for part in embeddings]
    try:
        plain, other = model.logits(parameters, text.expand(2, -1))
    finally:
        for hook in hooks:
            hook.remove()
    if not changed:
        return math.inf
    # What is common to all words is no part of the logits; and the loss's gradient is each word's
    # chance, less 1 for the next word.
    logits, others = (each - each.mean(dim=-1, keepdim=True) for each in (plain, other))
    gradient = plain.softmax(dim=-1).scatter_add_(
        -1, text.roll(-1)[:, None], plain.new_full((size, 1), -1.0)
    )
    apart = other.softmax(dim=-1) - plain.softmax(dim=-1)
    return max(_share(others - logits, logits), _share(apart, gradient)) / _CHANGE


def _share(distance: torch.Tensor, whole: torch.Tensor) -> float:
    """Return the length of `distance` in lengths of `whole`; infinite if either is not finite."""
    length, of = float(torch.linalg.vector_norm(distance)), float(torch.linalg.vector_norm(whole))
    if not math.isfinite(length + of):
        return math.inf
    return length / of if of else 0.0


class Steepness:
    """Whether a network is too steep for shared passes, asked once of the parameters of a round.

    Args:
        model: that is computed with.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._known: list[tuple[ref[torch.Tensor], int]] = []
        self._too_large = False
        self._said = False

    def too_large(self, parameters: Tensors) -> bool:
        """Return whether each unit must be computed alone.

        False for a network that does not show its module: nothing can be asked of it.
        """
        if not hasattr(self._model, "module"):
            return False
        now = [(ref(value), value._version) for value in parameters.values()]
        same = len(now) == len(self._known) and all(
            reference is known and version == last  # a living tensor has one plain reference
            for (reference, version), (known, last) in zip(now, self._known, strict=True)
        )
        if not same:
            found = steepness(in_float32(self._model), parameters)
            self._known, self._too_large = now, not found <= MOST
            if self._too_large and not self._said:
                self._said = True
                log.warning(
                    "%s: the network makes %.3g times as much of a change of its input, so of the "
                    "rounding of a shared pass; in such rounds the engine computes each unit alone",
                    self._model.name,
                    found,
                )
        return self._too_large

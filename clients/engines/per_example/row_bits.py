"""Passes in which a row has the same bits at every place, whoever the other rows are.

In bfloat16 one last bit is 2⁻⁸ of a number: more than the noise covers, if who shares a pass
decided it. Kernels add in an order that is of the shape of a pass and of a place in it, never of
the numbers. So a made-up row tells: where it has the same bits at all places of a shape, all have.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

import torch

from fedsim.clients.engines.cross_entropy import Batch
from fedsim.clients.engines.per_example.capture import HookedLayer, OpenModel, run
from fedsim.clients.engines.per_example.gradient_terms import Term
from fedsim.clients.models.dropout import drops
from fedsim.language_model import made_up_text
from fedsim.tensors import Tensors

log = logging.getLogger(__name__)

# A pass is filled with empty rows: up to the largest size, or for the last rows of a chunk to half
# of it, a quarter and so on, down to this share, where those give a row the bits of the largest.
_SMALLEST = 64
# Added to the parameters for the trial: of adapters half begin at zero, and so would the gradients
# of the other half, in which no order of summation shows.
_CHANGE = 0.02


class RowBits:
    """The sizes of passes that give rows the same bits, found once for each length of rows.

    What is found depends on the network, the device and made-up texts alone.

    Attributes:
        sizes: by length, numbers of rows in ascending order; none where the places of the largest
            differ, so that who has such a row must be computed alone.
    """

    def __init__(self, model: OpenModel, layers: Sequence[HookedLayer], max_tokens: int) -> None:
        """Take the model as it will compute, its layers by `find_layers`, and a pass's tokens."""
        self._model, self._layers, self._max_tokens = model, layers, max_tokens
        self.sizes: dict[int, tuple[int, ...]] = {}

    def hold(self, length: int, parameters: Tensors) -> bool:
        """Return whether rows of a length may share passes; `parameters` are those of the round."""
        if length not in self.sizes:
            self.sizes[length] = self._found(length, parameters)
            if not self.sizes[length]:
                log.info(
                    "%s: rows of %d tokens have not the same bits at all places of a pass; units "
                    "that have some are computed alone",
                    self._model.name,
                    length,
                )
        return bool(self.sizes[length])

    def _found(self, length: int, parameters: Tensors) -> tuple[int, ...]:
        source = torch.Generator().manual_seed(0)
        parameters = {
            name: value + _CHANGE * torch.randn(value.shape, generator=source).to(value)
            for name, value in parameters.items()
        }
        largest, share, bits = _largest(self._max_tokens // length), 1, _Bits()
        alike: list[int] = []
        while share <= min(_SMALLEST, largest):
            if self._alike(largest // share, length, parameters, bits):
                alike.insert(0, largest // share)
            elif share == 1:
                break
            share *= 2
        return tuple(alike)

    def _alike(self, size: int, length: int, parameters: Tensors, bits: _Bits) -> bool:
        """Return whether a row has the same bits at all places, and as in passes before."""
        device = self._model.device
        text = made_up_text(self._model, length, 0)
        others = made_up_text(self._model, size * length, 1).view(size, length)
        shares = torch.full((size, length), 1.0 / length, device=device)
        shares[:, -1] = 0.0  # which has no next token
        streams = torch.zeros(size, dtype=torch.int64, device=device)
        same = True
        for first in range(min(2, size)):  # at every other place, then at those between
            tokens = others.clone()
            tokens[first::2] = text
            batch = Batch(tokens, shares, None, streams if drops(self._model) else None)
            bits.begin(slice(first, None, 2))
            bits.compare("losses", run(self._model, self._layers, parameters, batch, bits))
            same &= bits.same()
        return same


def _largest(most: int) -> int:
    """Return the largest of 1, 2, 3, 4, 6, 8, 12, … that is at most `most`, or 1.

    Users who bring a power of two of rows fill it without a rest.

    Examples:
        >>> [_largest(most) for most in (0, 3, 5, 11, 107, 286)]
        [1, 3, 4, 8, 96, 256]
    """
    power = 1 << max(0, most.bit_length() - 1)
    return power * 3 // 2 if power >= 2 and most >= power * 3 // 2 else power


class _Bits:
    """Bits of one row's terms, from pass to pass and place to place."""

    def __init__(self) -> None:
        self._first: dict[str, torch.Tensor] = {}
        self._found: list[torch.Tensor] = []
        self._uses = Counter[str]()
        self._places = slice(0)

    def begin(self, places: slice) -> None:
        """Begin a pass that has the row at these places."""
        self._found, self._uses, self._places = [], Counter(), places

    def __call__(self, name: str, term: Term) -> None:
        """Take a term of the pass."""
        self._uses[name] += 1
        for side, values in vars(term).items():
            if isinstance(values, torch.Tensor):
                self.compare(f"{name}, use {self._uses[name]}, {side}", values)

    def compare(self, name: str, values: torch.Tensor) -> None:
        """Take (rows, ...) of the pass."""
        own = values[self._places]
        first = self._first.setdefault(name, own[0].clone())
        self._found.append((own == first).all())

    def same(self) -> bool:
        """Return whether all of the pass had the bits that came first; NaN has none."""
        return bool(torch.stack(self._found).all())

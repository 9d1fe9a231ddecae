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

# Tokens of the pass whose bits all others must give. One number, as workers have not the same
# memory free, and who else is there decides which of them computes a user. Below, an H100 has
# other kernels.
_TOKENS = 4096
# A pass is filled with empty rows up to one of so many times those of that pass. The smaller ones
# are for the last rows of a chunk.
_FEWER = (2, 4, 8, 16, 32, 64)
_MORE = tuple(size for power in range(12) for size in (1.5 * 2**power, 2.0 * 2**power))


class RowBits:
    """The sizes of passes that give rows the same bits, found once for each length of rows.

    What is found depends on the network, the device and made-up texts alone.

    Attributes:
        sizes: by length, numbers of rows in ascending order; none where places differ in bits, or
            memory is short, so that who has such a row must be computed alone.
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
        # Of adapters half begin at zero, and so would the gradients of the other half, in which no
        # order of summation shows.
        source = torch.Generator().manual_seed(0)
        parameters = {
            name: value if value.any() else torch.randn(value.shape, generator=source).to(value)
            for name, value in parameters.items()
        }
        tokens = _tokens(self._model.device, self._max_tokens)
        rows, most, bits = max(1, tokens // length), self._max_tokens // length, _Bits()
        if rows > most or not self._alike(rows, length, parameters, bits):
            return ()
        sizes = {rows // share for share in _FEWER} | {int(rows * times) for times in _MORE}
        others = [size for size in sizes - {rows} if 0 < size <= most]
        alike = [size for size in others if self._alike(size, length, parameters, bits)]
        return tuple(sorted([rows, *alike]))

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


def _tokens(device: torch.device, max_tokens: int) -> int:
    """Return the tokens of the pass whose bits count; a CPU has one limit in every process."""
    return min(_TOKENS, max_tokens) if device.type == "cpu" else _TOKENS


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

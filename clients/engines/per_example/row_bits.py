"""Passes of one shape in which a row has the same bits at every place, whoever the other rows are.

In bfloat16 one last bit is 2⁻⁸ of a number: more than the noise covers, if who shares a pass
decided it. So rows of a length always go through the network in passes of one size, filled with
empty rows: kernels add in an order that is of the shape, and of the place in it. Whether of the
place is tried with made-up rows.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

import torch

from fedsim.clients.engines.cross_entropy import Batch
from fedsim.clients.engines.per_example import chunks
from fedsim.clients.engines.per_example.capture import HookedLayer, OpenModel, run
from fedsim.clients.engines.per_example.gradient_terms import Term
from fedsim.clients.models.dropout import drops, row_streams
from fedsim.language_model import made_up_text
from fedsim.tensors import Tensors

log = logging.getLogger(__name__)

_TEXTS = 4  # of the trial
# Bytes of a score of a word: score and gradient in float32, the gradient in bfloat16 twice (as it
# is and filled up), and some air.
_OF_LOGITS = 18
# In place of parameters that are zero, as of adapters half are at first: the gradients of the other
# half would be zero too, and no order of summation would show.
_SMALL = 0.02


class RowBits:
    """The one size of passes by the length of rows, and whether places of it have the same bits.

    What is found depends on the network's start, the device, the limit and made-up texts alone: not
    on the round, nor on who has such rows.

    Attributes:
        sizes: by length, how many rows passes have; 0 where places differ or no such pass fits, so
            that who has such a row must be computed alone.
    """

    def __init__(self, model: OpenModel, layers: Sequence[HookedLayer], max_tokens: int) -> None:
        """Take the model as it will compute, its layers by `find_layers`, and a pass's tokens."""
        self._model, self._layers = model, layers
        self._max_tokens = max_tokens
        self.sizes: dict[int, int] = {}

    def hold(self, length: int) -> bool:
        """Return whether rows of a length may share passes."""
        if length not in self.sizes:
            size = chunks.largest(self._max_tokens // length)
            alone = ""
            if not size:
                alone = f"fit no pass, of {self._max_tokens} tokens"
            elif not self._alike(size, length):
                alone, size = "have not the same bits at all places of a pass", 0
            if alone:
                log.info(
                    "%s: rows of %d tokens %s; units that have some are computed alone",
                    *(self._model.name, length, alone),
                )
            self.sizes[length] = size
        return self.sizes[length] > 0

    def _alike(self, size: int, length: int) -> bool:
        """Return whether each of some rows has the same bits at all places of a pass."""
        model, device = self._model, self._model.device
        texts = torch.cat([made_up_text(model, length, text) for text in range(_TEXTS)])
        source = torch.Generator().manual_seed(0)
        parameters = {
            name: (value if value.any() else _SMALL * torch.randn(value.shape, generator=source))
            for name, value in model.initial_parameters().items()
        }
        parameters = {name: value.to(device) for name, value in parameters.items()}
        first = torch.randint(0, _TEXTS, (size,), generator=source)
        shares = torch.full((size, length), 1.0 / length, device=device)
        shares[:, -1] = 0.0  # which has no next token
        streams = torch.zeros(size, dtype=torch.int64, device=device) if drops(model) else None
        bits = _Bits()
        for step in range(_TEXTS):  # each place has each text once, beside others
            texts_of = ((first + step) % _TEXTS).to(device)
            bits.begin(texts_of)
            batch = Batch(texts[texts_of], shares, None, streams)
            bits.compare("losses", run(model, self._layers, parameters, batch, bits))
        return bits.same()


def pass_bytes(model: OpenModel, parameters: Tensors, length: int) -> tuple[int, int]:
    """Return what a pass takes of memory: bytes whatever its size, and bytes a token.

    Counted from what autograd keeps of made-up rows of a length, of blocks that are computed again
    one, and not from what a device has left: sizes of passes must be the same on every worker of a
    kind.
    """
    leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    kept = [_kept(model, leaves, rows, length) for rows in (1, 2)]
    of_row = kept[1] - kept[0]
    return max(0, kept[0] - of_row), of_row // length + _OF_LOGITS * model.vocabulary_size


def _kept(model: OpenModel, leaves: Tensors, rows: int, length: int) -> int:
    """Return the bytes that the graph of so many rows holds, weights left out."""
    module = model.module
    own = [*leaves.values(), *module.parameters(), *module.buffers()]
    weights = {value.untyped_storage().data_ptr() for value in own}
    held: list[torch.Tensor] = []  # freed memory would be counted once for all that lay there
    storages: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        held.append(tensor.detach())  # the tensor itself would hold the graph that holds it
        return held[-1]

    texts = torch.cat([made_up_text(model, length, text) for text in range(rows)])
    streams = torch.zeros(rows, dtype=torch.int64, device=texts.device) if drops(model) else None
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with torch.enable_grad(), row_streams(streams), hooks:
        logits = model.logits(leaves, texts)
        of_graph = sum(storages.values())
        torch.autograd.grad(logits.sum(), list(leaves.values()), allow_unused=True)
    of_blocks_again = sum(storages.values()) - of_graph
    return of_graph + of_blocks_again // max(1, len(getattr(model, "blocks", ())))


class _Bits:
    """Bits of some texts' terms, from pass to pass and place to place."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], torch.Tensor] = {}
        self._found: list[torch.Tensor] = []
        self._uses = Counter[str]()
        self._places: list[torch.Tensor] = []

    def begin(self, texts: torch.Tensor) -> None:
        """Begin a pass with these texts at its places, (rows,) int64."""
        self._uses = Counter()
        self._places = [(texts == text).nonzero()[:, 0] for text in range(_TEXTS)]

    def __call__(self, name: str, term: Term) -> None:
        """Take a term of the pass."""
        self._uses[name] += 1
        for side, values in vars(term).items():
            if isinstance(values, torch.Tensor):
                self.compare(f"{name}, use {self._uses[name]}, {side}", values)

    def compare(self, name: str, values: torch.Tensor) -> None:
        """Take (rows, ...) of the pass."""
        for text, places in enumerate(self._places):
            if len(places):
                own = values[places]
                first = self._first.setdefault((name, text), own[0].clone())
                self._found.append((own == first).all())

    def same(self) -> bool:
        """Return whether each text had the same bits everywhere; NaN has none."""
        return bool(torch.stack(self._found).all())

"""Shapes of passes: to what length rows are padded, and how many rows a pass has.

What is rounded how depends on the shape that a kernel is given. So the shape is, as far as it can
be, of each unit alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedsim.clients.models.lstm_recurrence import RECURRENT
from fedsim.clients.models.transformers_model import max_positions
from fedsim.language_model import LanguageModel, module_of

# Rows are padded to these lengths: so many steps from one power of two to the next, each a multiple
# of `_STEP`. A pass has rows of one length, so fewer steps are more padding and fewer passes: a GPU
# waits for its host between passes, a CPU pays for padding.
_CPU_STEPS, _GPU_STEPS, _STEP = 4, 2, 32

# Of a product of fewer rows and more, a row may have other bits: processors take other kernels.
# Measured with MKL on one thread, float32, products of up to 50,000 terms: from 192 rows on a row
# has the same bits beside any number of others; from 16 to 191 too. Not so with several threads,
# nor in the batched products of attention where a head has one number.
# A recurrence takes rows by position, so that rows, not tokens, are in one of the two ranges.
_LEAST_TOKENS = 192
_LEAST_RECURRENT, _MOST_RECURRENT = 16, 128
# Numbers that a vector instruction takes at once, twice: what is left over at the end of a tensor
# is computed otherwise, so that the last row would have other bits. So are the last rows of a
# product of one column, as of adapters of rank 1, where the rows are no multiple of 4.
_VECTOR, _TOKEN_STEP = 32, 4


@dataclass(frozen=True)
class PassShape:
    """Which rows go through a network together: what makes a row's bits its own.

    The length that a row is padded to is a function of its own tokens, never of who else is there:
    sums along a row, as in attention, are rounded by its length. Beside other rows a kernel may
    round a row otherwise where there are few of them, so small passes are filled with empty rows.

    Attributes:
        most_positions: rows are not padded beyond so many; 0: not at all.
        least_rows: of a pass.
        most_rows: of a pass.
        row_step: a pass has a multiple of so many rows.
        least_tokens: of a pass, padding included.
        token_step: a pass has a multiple of so many tokens, padding included.
        steps: of lengths, from one power of two to the next.
        sizes: by the length of rows, the one number of rows that passes have, in place of the
            above; see `RowBits`.
    """

    most_positions: int = 0
    least_rows: int = 1
    most_rows: int = 1 << 30
    row_step: int = 1
    least_tokens: int = 1
    token_step: int = 1
    steps: int = _CPU_STEPS
    sizes: Mapping[int, int] | None = None

    def padded(self, length: int) -> int:
        """Return the positions of a row of so many tokens.

        Examples:
            >>> shape = PassShape(most_positions=1000)
            >>> [shape.padded(length) for length in (1, 16, 17, 130, 300, 999, 1001)]
            [32, 32, 32, 160, 320, 1000, 1001]
        """
        step = max(_STEP, (1 << (length - 1).bit_length()) // (2 * self.steps))
        return max(length, min(-(-length // step) * step, self.most_positions))

    def num_rows(self, rows: int, length: int) -> int:
        """Return how many rows a pass of so many has, empty ones included."""
        if self.sizes is not None:
            return self.sizes[length]
        rows, step = max(rows, self.least_rows, -(-self.least_tokens // length)), self._step(length)
        return -(-rows // step) * step

    def most(self, length: int, max_tokens: int) -> int:
        """Return how many rows of a length a pass of so many tokens may have."""
        if self.sizes is not None:
            return self.sizes[length]
        rows, step = max(1, max_tokens // length), self._step(length)
        return min(rows if rows < step else rows - rows % step, self.most_rows)

    def _step(self, length: int) -> int:
        return math.lcm(self.row_step, self.token_step // math.gcd(self.token_step, length))


def pass_shape(model: LanguageModel) -> PassShape:
    """Return the shape of a network's passes.

    A recurrence multiplies a matrix of one position of every row; other layers one of all positions
    of all rows, and attention one of each row's. A network that does not say how many positions it
    has is taken to have as many as the data's sequences.
    """
    module = module_of(model)
    positions = max_positions(module)
    if positions is None:
        positions = getattr(model, "sequence_length", 0)
    if model.device.type == "cuda":
        return PassShape(positions, steps=_GPU_STEPS)
    shape = PassShape(positions, least_tokens=_LEAST_TOKENS, token_step=_TOKEN_STEP)
    if sizes := [part.hidden_size for part in module.modules() if isinstance(part, RECURRENT)]:
        row_step = _VECTOR // math.gcd(_VECTOR, *sizes)
        return replace(
            shape, least_rows=_LEAST_RECURRENT, most_rows=_MOST_RECURRENT, row_step=row_step
        )
    return shape

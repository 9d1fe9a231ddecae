"""Shapes of passes: the length that rows are padded to, and the number of rows of a pass.

A kernel may round a row by the shape of the pass that it is in. A pass therefore has one of a few
shapes, whoever is in it: a row's length depends on that row alone, and passes are filled with empty
rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedsim.clients.models.mixed_precision import in_float32
from fedsim.clients.models.transformers_model import max_positions
from fedsim.language_model import LanguageModel, module_of

# Lengths from one power of two to the next, each a multiple of `_MULTIPLE` tokens. A pass has rows
# of one length: fewer lengths mean more padding and fewer passes. A GPU waits for its host between
# passes; a CPU pays for padding.
_CPU_STEPS, _GPU_STEPS, _MULTIPLE = 4, 2, 32
# Numbers of rows from one power of two to the next.
_ROW_STEPS = 4


@dataclass(frozen=True)
class PassShape:
    """The shapes that passes may have.

    Attributes:
        most_positions: rows are not padded beyond so many tokens; 0: not at all.
        steps: lengths from one power of two to the next.
        one_size: whether all passes of a length have the same number of rows, the largest that
            fits. In bfloat16 another number of rows may change a gradient by a hundredth; in
            float32 the change is far below the tolerance of `fedsim.noise`, so that the last pass
            may be smaller.
    """

    most_positions: int = 0
    steps: int = _CPU_STEPS
    one_size: bool = False

    def padded(self, length: int) -> int:
        """Return the length that a row of `length` tokens is padded to.

        Examples:
            >>> shape = PassShape(most_positions=1000)
            >>> [shape.padded(length) for length in (1, 16, 17, 130, 300, 999, 1001)]
            [32, 32, 32, 160, 320, 1000, 1001]
        """
        step = max(_MULTIPLE, _step(length, self.steps))
        return max(length, min(-(-length // step) * step, self.most_positions))

    def most(self, length: int, max_tokens: int) -> int:
        """Return the most rows of a pass of `max_tokens` tokens, at least one.

        Examples:
            >>> [PassShape().most(64, tokens) for tokens in (1, 64, 700, 4096)]
            [1, 1, 10, 64]
        """
        rows = max(1, max_tokens // length)
        step = _step(rows + 1, 2 if self.one_size else _ROW_STEPS)
        return rows // step * step

    def filled(self, rows: int, most: int) -> int:
        """Return the rows of a pass that has `rows` of the `most` possible, empty ones included.

        Examples:
            >>> [PassShape().filled(rows, most=56) for rows in (1, 5, 9, 17, 33, 56)]
            [1, 5, 10, 20, 40, 56]
            >>> PassShape(one_size=True).filled(1, most=48)
            48
        """
        if self.one_size:
            return most
        step = _step(rows, _ROW_STEPS)
        return min(-(-rows // step) * step, most)


def _step(number: int, steps: int) -> int:
    """Return the distance of multiples around `number`: so many from a power of two to the next."""
    return max(1, (1 << (number - 1).bit_length()) // (2 * steps))


def pass_shape(model: LanguageModel) -> PassShape:
    """Return the shapes of a network's passes, in the precision that it computes in.

    A network that does not say how many positions it has is taken to have as many as the data's
    sequences.
    """
    positions = max_positions(module_of(model))
    if positions is None:
        positions = getattr(model, "sequence_length", 0)
    steps = _GPU_STEPS if model.device.type == "cuda" else _CPU_STEPS
    if in_float32(model) is not model:
        return PassShape(positions, steps=1, one_size=True)
    return PassShape(positions, steps=steps)

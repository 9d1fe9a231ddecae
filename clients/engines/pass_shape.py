"""Shapes of passes: the length that rows are padded to, and the number of rows of a pass.

A kernel's rounding of a row may depend on the shape of the pass. Passes therefore have one of a few
shapes that do not depend on the other users' rows: the padded length of a row depends on that row
alone, and empty rows fill a pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedsim.clients.models.mixed_precision import in_float32
from fedsim.clients.models.transformers_model import max_positions
from fedsim.language_model import LanguageModel, module_of

# Number of lengths from one power of two to the next, each a multiple of `_MULTIPLE` tokens. All
# rows of a pass have one length: fewer lengths mean more padding and fewer passes. On a GPU each
# pass has a fixed cost; on a CPU padding costs more.
_CPU_STEPS, _GPU_STEPS, _MULTIPLE = 4, 2, 32
# Number of possible row counts from one power of two to the next.
_ROW_STEPS = 4


@dataclass(frozen=True)
class PassShape:
    """Allowed shapes of passes.

    Attributes:
        most_positions: maximum padded length, in tokens; 0: rows are not padded.
        steps: number of lengths from one power of two to the next.
        one_size: whether all passes of a length have the same number of rows, the largest that
            fits. In bfloat16 the number of rows may change a gradient by a hundredth. In float32
            the change is far below the tolerance of `fedsim.noise`, so the last pass may be
            smaller.
    """

    most_positions: int = 0
    steps: int = _CPU_STEPS
    one_size: bool = False

    def padded(self, length: int) -> int:
        """Return the padded length of a row of `length` tokens.

        Examples:
            >>> shape = PassShape(most_positions=1000)
            >>> [shape.padded(length) for length in (1, 16, 17, 130, 300, 999, 1001)]
            [32, 32, 32, 160, 320, 1000, 1001]
        """
        step = max(_MULTIPLE, _step(length, self.steps))
        return max(length, min(-(-length // step) * step, self.most_positions))

    def most(self, length: int, max_tokens: int) -> int:
        """Return the maximum number of rows of a pass of `max_tokens` tokens, at least one.

        Examples:
            >>> [PassShape().most(64, tokens) for tokens in (1, 64, 700, 4096)]
            [1, 1, 10, 64]
        """
        rows = max(1, max_tokens // length)
        step = _step(rows + 1, 2 if self.one_size else _ROW_STEPS)
        return rows // step * step

    def filled(self, rows: int, most: int) -> int:
        """Return the number of rows, including empty ones, of a pass with `rows` of at most `most`.

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
    """Return the step size near `number`, for `steps` steps between two powers of two."""
    return max(1, (1 << (number - 1).bit_length()) // (2 * steps))


def pass_shape(model: LanguageModel) -> PassShape:
    """Return the allowed shapes of a network's passes, in its precision.

    If a network does not state its number of positions, the length of the data's sequences is used.
    """
    positions = max_positions(module_of(model))
    if positions is None:
        positions = getattr(model, "sequence_length", 0)
    steps = _GPU_STEPS if model.device.type == "cuda" else _CPU_STEPS
    if in_float32(model) is not model:
        return PassShape(positions, steps=1, one_size=True)
    return PassShape(positions, steps=steps)

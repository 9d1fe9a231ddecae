"""What the PNG and the pages share: colours, and labels that keep out of each other's way."""

from __future__ import annotations

from collections.abc import Sequence

# Okabe and Ito's colours, told apart by every kind of colour vision; yellow is too pale here.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
DASHES = ("solid", "dash", "dot", "dashdot")
INK, MUTED, RULE = "#1b1f24", "#59626e", "#d9dee4"


def colour(index: int) -> str:
    """Return the colour of series `index`, from 0; they repeat after six."""
    return COLOURS[index % len(COLOURS)]


def dash(index: int) -> str:
    """Return the line style of series `index` (plotly's name): a new one each six series."""
    return DASHES[index // len(COLOURS) % len(DASHES)]


def spread(positions: Sequence[float], gap: float) -> list[float]:
    """Move positions apart until neighbours differ by `gap`, keeping their order and centre.

    Args:
        positions: finite coordinates along one axis, in any order.
        gap: the smallest distance allowed, in the same unit.

    Returns:
        The new coordinates, in the order of the argument.
    """
    blocks: list[list[int]] = []
    centres: list[float] = []
    for index in sorted(range(len(positions)), key=lambda i: (positions[i], i)):
        block, centre = [index], positions[index]
        # A block that reaches into the one below joins it around their common mean.
        while blocks and centre - centres[-1] < gap * (len(block) + len(blocks[-1])) / 2:
            block = blocks.pop() + block
            centres.pop()
            centre = sum(positions[i] for i in block) / len(block)
        blocks.append(block)
        centres.append(centre)
    placed = [0.0] * len(positions)
    for block, centre in zip(blocks, centres, strict=True):
        for rank, index in enumerate(block):
            placed[index] = centre + gap * (rank - (len(block) - 1) / 2)
    return placed


def shorten(label: str, length: int) -> str:
    """Return the label on one line, cut to `length` characters with an ellipsis."""
    line = " ".join(label.split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"

"""Colours, line styles and short labels of pictures and pages."""

from __future__ import annotations

# Okabe and Ito's colours, which suit all kinds of colour vision; without the pale yellow.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
DASHES = ("-", "--", ":", "-.")
INK, MUTED, RULE = "#1b1f24", "#59626e", "#d9dee4"
GREY = "#87909c"  # readable on white and on black


def colour(index: int) -> str:
    """Return the colour of series `index`, from 0; colours repeat after six."""
    return COLOURS[index % len(COLOURS)]


def dash(index: int) -> str:
    """Return matplotlib's line style of series `index`; it changes after every six series."""
    return DASHES[index // len(COLOURS) % len(DASHES)]


def shorten(label: str, length: int) -> str:
    """Return the label on one line, cut to `length` characters with an ellipsis."""
    line = " ".join(label.split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"

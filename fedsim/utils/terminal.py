"""Where commands print tables: a terminal is as wide as it is, a file or a pipe as is needed."""

from __future__ import annotations

import os
import sys

from rich.console import Console

_WIDTH_OF_A_FILE = 200  # columns


def table_console() -> Console:
    """Return a console on standard output.

    Into a file or a pipe, as in a notebook's `!fedsim`, it has 200 columns, unless COLUMNS says
    otherwise. Rich would take 80, and break words to make a table of twelve columns fit.
    """
    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=_WIDTH_OF_A_FILE if wide else None)

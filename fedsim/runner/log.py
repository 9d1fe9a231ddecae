"""run.log: the messages of fedsim's packages during a run, in rotating files."""

from __future__ import annotations

import logging
import logging.handlers
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

LOG = "run.log"
LOGGER = "fedsim"  # every module of ours is below it
_BYTES, _BACKUPS = 2_000_000, 3
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Quiet(logging.handlers.RotatingFileHandler):
    """One that neither ends a run nor fills standard error where its disk is full."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Drop the line."""


@contextmanager
def run_log(folder: Path) -> Iterator[None]:
    """Write the messages of fedsim's packages into `run.log` too while the block runs.

    Appended to by a run that is taken up; at 2 MB it becomes `run.log.1`, and the oldest of three
    goes. What others log (transformers, Ray, Flower) is not in it, nor any text of a user: fedsim's
    messages hold none. It is no part of what a run repeats to the bit.
    """
    handler = _Quiet(folder / LOG, maxBytes=_BYTES, backupCount=_BACKUPS, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_FORMAT))
    logger = logging.getLogger(LOGGER)
    logger.addHandler(handler)
    try:
        _say(handler, logging.INFO, f"fedsim {version('fedsim-dp')} begins")
        yield
        _say(handler, logging.INFO, "ended")
    except BaseException as error:
        # The type alone: words of an error may quote what it was about.
        _say(handler, logging.ERROR, f"ended by {type(error).__name__}")
        raise
    finally:
        logger.removeHandler(handler)
        with suppress(OSError):  # a full disk
            handler.close()


def _say(handler: logging.Handler, level: int, words: str) -> None:
    """Write a line into this log alone: standard error has its own."""
    handler.handle(logging.LogRecord("fedsim", level, __file__, 0, words, None, None))

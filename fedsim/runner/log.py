"""run.log: messages of fedsim's packages during a run, in rotating files."""

from __future__ import annotations

import logging
import logging.handlers
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

LOG = "run.log"
LOGGER = "fedsim"  # parent of the loggers of all fedsim packages
_BYTES, _BACKUPS = 2_000_000, 3
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Quiet(logging.handlers.RotatingFileHandler):
    """A handler that drops lines when its disk is full, without an error."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Drop the line."""


@contextmanager
def run_log(folder: Path) -> Iterator[None]:
    """Also write the messages of fedsim's packages to `run.log` while the block runs.

    A resumed run appends to the file. At 2 MB it becomes `run.log.1`, and the oldest of three
    backups is deleted. It has no messages of other packages (transformers, Ray, Flower) and no
    user's text. Equal runs do not write equal logs.
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
        # Only the type: the message of an error may quote private text.
        _say(handler, logging.ERROR, f"ended by {type(error).__name__}")
        raise
    finally:
        logger.removeHandler(handler)
        with suppress(OSError):  # a full disk
            handler.close()


def _say(handler: logging.Handler, level: int, words: str) -> None:
    """Write a line to this log only, not to standard error."""
    handler.handle(logging.LogRecord("fedsim", level, __file__, 0, words, None, None))

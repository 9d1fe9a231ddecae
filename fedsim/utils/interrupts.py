"""Ctrl-C held back while something must not be left half done."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType

log = logging.getLogger("fedsim")


class Interrupts:
    """Between `hold` and `release` a first Ctrl-C is kept for `release` to raise; a second stops.

    A block (`with`) in which Python's own handler of SIGINT is replaced. Where another was set, or
    outside of the main thread, which gets no signals, nothing changes.

    Args:
        what: is being finished, for the line that a held Ctrl-C logs.

    Examples:
        >>> with Interrupts("the round") as interrupts:
        ...     interrupts.hold()
        ...     interrupts.release()
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._holding = self._came = self._ours = False

    def __enter__(self) -> Interrupts:
        self._ours = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._ours:
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if kind is None:
            self.release()

    def hold(self) -> None:
        """From now on, keep a Ctrl-C."""
        self._holding = True

    def release(self) -> None:
        """Raise `KeyboardInterrupt` if one came, and let the next one through."""
        came, self._holding, self._came = self._came, False, False
        if came:
            raise KeyboardInterrupt

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if not self._holding or self._came:
            raise KeyboardInterrupt
        self._came = True
        log.info("Ctrl-C: stops once %s is written down; another stops at once", self._what)

"""Ctrl-C, SIGTERM and SIGHUP, held back while something must not be left half done."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType

log = logging.getLogger("fedsim")


def stop_as_ctrl_c_does() -> None:
    """Let SIGTERM and SIGHUP raise `KeyboardInterrupt`, unless something else is set for them.

    `nohup`, for one, has SIGHUP ignored.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


class Interrupts:
    """Between `hold` and `release` a signal is kept for `release` to raise; a second Ctrl-C stops.

    A block (`with`) in which Python's own handler of SIGINT is replaced, also where SIGTERM or
    SIGHUP have it. Where another was set, or outside of the main thread, which gets no signals,
    nothing changes. A signal that was raised holds back those after it, until the next `release`.

    Args:
        what: is being finished, for the line that a held signal logs.

    Examples:
        >>> with Interrupts("the round") as interrupts:
        ...     interrupts.hold()
        ...     interrupts.release()
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._holding = self._came = False
        self._ours: list[signal.Signals] = []

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            default = signal.default_int_handler
            self._ours = [each for each in signals if signal.getsignal(each) is default]
        for number in self._ours:
            signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number in self._ours:
            signal.signal(number, signal.default_int_handler)
        if kind is None:
            self.release()

    def hold(self) -> None:
        """From now on, keep a signal."""
        self._holding = True

    def release(self) -> None:
        """Raise `KeyboardInterrupt` if a signal came, and let the next one through."""
        came, self._holding, self._came = self._came, False, False
        if came:
            raise KeyboardInterrupt

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        at_once = self._came and number == signal.SIGINT
        if at_once or not self._holding:
            self._holding = True  # schedulers send SIGTERM and SIGHUP one right after the other
            raise KeyboardInterrupt
        if not self._came:
            name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
            log.info("%s: stops once %s is written down; Ctrl-C stops at once", name, self._what)
        self._came = True

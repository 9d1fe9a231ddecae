"""Defer Ctrl-C, SIGTERM and SIGHUP while an operation must finish."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType

log = logging.getLogger("fedsim")


def stop_as_ctrl_c_does() -> None:
    """Let SIGTERM and SIGHUP raise `KeyboardInterrupt`, unless they have another handler.

    For example, `nohup` ignores SIGHUP.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


class Interrupts:
    """Defers signals between `hold` and `release`; a second Ctrl-C stops at once.

    Within the `with` block it replaces Python's default handler of SIGINT, and of SIGTERM and
    SIGHUP if they have the same handler. It does not replace other handlers, and has no effect
    outside of the main thread. After a signal is raised, later ones are deferred until `release`.

    Args:
        what: the operation to finish, for the log line of a deferred signal.

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
        """Start deferring signals."""
        self._holding = True

    def release(self) -> None:
        """Stop deferring; raise `KeyboardInterrupt` if a signal came."""
        came, self._holding, self._came = self._came, False, False
        if came:
            raise KeyboardInterrupt

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        at_once = self._came and number == signal.SIGINT
        if at_once or not self._holding:
            self._holding = True  # schedulers send SIGTERM and SIGHUP in quick succession
            raise KeyboardInterrupt
        if not self._came:
            name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
            log.info("%s: stops once %s is saved; Ctrl-C stops at once", name, self._what)
        self._came = True

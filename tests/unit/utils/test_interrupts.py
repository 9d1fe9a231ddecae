"""Signals are held back between `hold` and `release`, by Python's own handler alone."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from fedsim.utils.interrupts import Interrupts, stop_as_ctrl_c_does


@pytest.fixture(autouse=True)
def own_handler() -> Iterator[None]:
    """Python's own: who runs tests may ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_one_is_kept_for_the_release_or_the_end_and_a_second_stops_at_once() -> None:
    with Interrupts("it") as interrupts:
        interrupts.hold()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.release()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Interrupts("it") as interrupts:
        interrupts.hold()
        signal.raise_signal(signal.SIGINT)


def test_signals_of_a_scheduler_wait_and_stop_nothing_at_once() -> None:
    """One that was raised holds back the next, which comes right after it."""
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop_as_ctrl_c_does()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as `nohup` wants it
        with pytest.raises(KeyboardInterrupt), Interrupts("it") as interrupts:
            interrupts.hold()
            for _ in range(2):
                signal.raise_signal(signal.SIGTERM)
            with pytest.raises(KeyboardInterrupt):
                interrupts.release()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            interrupts.release()
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_an_error_goes_first_and_the_handler_is_pythons_again() -> None:
    with pytest.raises(ValueError, match="it"), Interrupts("it") as interrupts:
        interrupts.hold()
        signal.raise_signal(signal.SIGINT)
        raise ValueError("it")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

"""Being asked to stop by a signal: no handler takes a lock that the main thread may hold."""

from __future__ import annotations

import queue
import signal
import threading

import pytest

from fastjournal.cli.spark.session import stopping
from fastjournal.cli.stop_signal import SIGNALS


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_asks_and_what_was_there_before_comes_back(number: signal.Signals) -> None:
    before = [signal.getsignal(one) for one in SIGNALS]
    with stopping() as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        assert stop.is_set() and stop.wait(60)
    assert [signal.getsignal(one) for one in SIGNALS] == before


def test_outside_the_main_thread_no_handler_is_set() -> None:
    found: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def look() -> None:
        with stopping() as stop:
            stop.set()
            found.put(stop.is_set())

    threading.Thread(target=look).start()
    assert found.get(timeout=30)


def test_a_handler_may_interrupt_the_waking_of_whoever_waits() -> None:
    """A `threading.Event` takes a lock to be set: a second signal inside the first hangs."""
    with stopping() as stop:
        assert not isinstance(stop, threading.Event)
        for _ in range(1000):
            signal.raise_signal(signal.SIGTERM)
            stop.set()
        assert stop.wait(0)

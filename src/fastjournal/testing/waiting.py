"""Waiting for what other threads and processes do, without guessing how long they take.

Rules:

1. A test waits for a condition, never for a length of time; the limit is only there so that a
   broken program fails the test instead of holding it up.
2. Where an event, a file descriptor or a clock that moves by hand can be waited for, that is better
   than asking again and again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["wait_until"]

_LONGEST = 0.02  # seconds between two looks


def wait_until(condition: Callable[[], object], *, seconds: float = 30.0, what: str = "") -> None:
    """Return once `condition` holds; `AssertionError` naming `what` if it does not in time."""
    give_up = time.monotonic() + seconds
    pause = 0.0005
    idle = threading.Event()
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {seconds:g} s: {what or condition}")
        idle.wait(pause)
        pause = min(pause * 2, _LONGEST)

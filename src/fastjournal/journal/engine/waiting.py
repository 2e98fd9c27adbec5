"""How a thread waits for its turn, so that Ctrl-C ends the wait at once.

A signal that comes just before a thread falls asleep does not wake it, and compiled code looks for
none. So this module is interpreted, looks before each sleep, and sleeps no longer than a second.
"""

from __future__ import annotations

import threading

__all__ = ["wait_at"]

_LOOK = 1.0  # seconds


def wait_at(gate: threading.Lock, seconds: float) -> None:
    """Wait until the gate is released, at most so long."""
    while seconds > 0:
        if gate.acquire(timeout=min(seconds, _LOOK)):
            return
        seconds -= _LOOK

"""The public test kit: a clock that moves by hand, files that crash and fail, promises to hold."""

from __future__ import annotations

from fastjournal.testing.clock import ManualClock, ManualTicker, wait_until
from fastjournal.testing.files import Crash, Fault, MemoryFiles
from fastjournal.testing.promises import (
    Answers,
    PromiseBroken,
    check_max_wait,
    check_one_waiting_row,
    check_replay,
    check_stale_token,
)

__all__ = [
    "Answers",
    "Crash",
    "Fault",
    "ManualClock",
    "ManualTicker",
    "MemoryFiles",
    "PromiseBroken",
    "check_max_wait",
    "check_one_waiting_row",
    "check_replay",
    "check_stale_token",
    "wait_until",
]

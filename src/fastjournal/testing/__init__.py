"""The public test kit: a clock that moves by hand, and files that crash and fail on demand."""

from __future__ import annotations

from fastjournal.testing.clock import ManualClock, ManualTicker
from fastjournal.testing.files import Crash, Fault, MemoryFiles

__all__ = ["Crash", "Fault", "ManualClock", "ManualTicker", "MemoryFiles"]

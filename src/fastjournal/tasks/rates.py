"""Token buckets kept in the journal: so many calls in such a time, whoever runs them.

Rules:

1. A bucket is an entry: how many tokens it held, and when. It is changed under its lock, so all
   workers share it, and it outlives them.
2. It fills by the journal's time, never above its burst.
3. Whoever gets no token is told when there will be one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from fastjournal.clock import SECOND
from fastjournal.errors import Locked, SettingError

__all__ = ["Rate", "take_tokens"]

_PREFIX = "fastjournal.rates/"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_FORM = re.compile(r"(\d+)\s*/\s*(\d*)\s*([smhd])")
_LOCK_LASTS, _LOCK_WAIT = 5, 2  # seconds


@dataclass(frozen=True, slots=True)
class Rate:
    """So many in such a time."""

    count: int
    seconds: float
    burst: int
    """How many may come at once after a rest."""

    @classmethod
    def parse(cls, text: str | Rate, burst: int | None = None) -> Rate:
        """`10/s`, `100/m`, `5/10s`; `burst`: as many as the count unless told."""
        if isinstance(text, Rate):
            return text
        found = _FORM.fullmatch(text.strip())
        if found is None or not int(found[1]) or found[2] == "0":
            raise SettingError(f"a rate is like 10/s, 100/m or 5/10s, not {text!r}", name="rate")
        count = int(found[1])
        seconds = int(found[2] or 1) * _UNITS[found[3]]
        return cls(count, float(seconds), count if burst is None else burst)

    def __str__(self) -> str:
        each = next((f"{name}" for name, unit in _UNITS.items() if unit == self.seconds), "")
        return f"{self.count}/{each or f'{self.seconds:g}s'}"

    def filled(self, tokens: float, then: int, now: int) -> float:
        """How many tokens there are, so long after there were so many."""
        grown = max(0, now - then) / SECOND * self.count / self.seconds
        return min(float(self.burst), tokens + grown)

    def wait_for(self, tokens: float) -> float:
        """Seconds until there is a whole token."""
        return max(0.0, 1 - tokens) * self.seconds / self.count


def take_tokens(journal: Any, name: str, rate: Rate, wanted: int, now: int) -> tuple[int, float]:
    """Take up to `wanted` tokens, or give some back (negative); how many, and seconds to wait."""
    key = _PREFIX + name
    try:
        with journal.entries.lock(key, _LOCK_LASTS, wait=_LOCK_WAIT) as held:
            text = held.get()
            then, tokens = now, float(rate.burst)
            if isinstance(text, str):
                at, _, left = text.partition(" ")
                then, tokens = int(at), float(left)
            tokens = rate.filled(tokens, then, now)
            granted = wanted if wanted < 0 else min(wanted, int(tokens + 1e-9))
            if granted:
                tokens = min(float(rate.burst), tokens - granted)
                # Once it is full there is nothing to remember.
                lasts = rate.seconds * max(rate.burst / rate.count, 1) + 60
                held.set(f"{max(now, then)} {tokens!r}", ttl=lasts)
    except Locked:
        return 0, 0.1
    return granted, 0.0 if granted else rate.wait_for(tokens)

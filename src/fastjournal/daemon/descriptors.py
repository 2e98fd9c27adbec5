"""Open files of the process: as many as allowed, and some of them always left for the log.

Rules:

1. A process may raise its own soft limit up to the hard one; a daemon does at its start.
2. Connections get what the limit leaves when the log and the listeners have their share: a log
   that cannot open its next segment cannot go on.
"""

from __future__ import annotations

import resource
from collections.abc import Callable

__all__ = ["allow_all", "left_for_peers", "open_limit"]

_PROCESS = 64  # standard streams, event loop, listeners, threads, certificates being read
_JOURNAL = 64  # active and standby segment, locks, snapshot, cleaning, values read back


def open_limit() -> int:
    """How many files the process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def allow_all(
    get: Callable[[int], tuple[int, int]] = resource.getrlimit,
    set_: Callable[[int, tuple[int, int]], None] = resource.setrlimit,
) -> int:
    """Raise the soft limit to the hard one as far as the system lets us; returns the limit."""
    soft, hard = get(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            set_(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # some systems say "unlimited" and mean less
            return soft
    return hard


def left_for_peers(limit: int, journals: int, visitors: int) -> int:
    """How many connections a limit of open files leaves room for.

    `visitors`: connections of metrics and dashboard, which have bounds of their own.
    """
    if limit < 0 or limit == resource.RLIM_INFINITY:
        return 1 << 30
    spare = _PROCESS + _JOURNAL * journals + visitors
    return max(limit - spare, limit // 4, 1)

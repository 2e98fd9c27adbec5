"""Where a lock on a key stood; it is in `fastjournal.handles`."""

from __future__ import annotations

import warnings

from fastjournal.handles import HeldLock, Locking

__all__ = ["HeldLock", "Locking"]

warnings.warn("fastjournal.held has moved to fastjournal.handles", DeprecationWarning, stacklevel=2)

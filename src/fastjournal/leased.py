"""Where a leased job stood; it is in `fastjournal.handles`."""

from __future__ import annotations

import warnings

from fastjournal.handles import Finisher, LeasedJob

__all__ = ["Finisher", "LeasedJob"]

warnings.warn(
    "fastjournal.leased has moved to fastjournal.handles", DeprecationWarning, stacklevel=2
)

"""Where `JournalView` stood in 0.1.0: use `fastjournal.journal.look.read_only`."""

from __future__ import annotations

import warnings

from fastjournal.journal.look.read_only import JournalView

__all__ = ["JournalView"]

warnings.warn(
    "fastjournal.journal.view has moved to fastjournal.journal.look.read_only",
    DeprecationWarning,
    stacklevel=2,
)

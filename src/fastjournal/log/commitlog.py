"""Where `CommitLog` stood in 0.1.0: use `fastjournal.log.CommitLog`."""

from __future__ import annotations

import warnings

from fastjournal.log.write.commit_log import CommitLog

__all__ = ["CommitLog"]

warnings.warn(
    "fastjournal.log.commitlog has moved: from fastjournal.log import CommitLog",
    DeprecationWarning,
    stacklevel=2,
)

"""Where `AsyncCommitLog` stood in 0.1.0: use `fastjournal.log.AsyncCommitLog`."""

from __future__ import annotations

import warnings

from fastjournal.log.write.async_commit_log import AsyncCommitLog

__all__ = ["AsyncCommitLog"]

warnings.warn(
    "fastjournal.log.aio has moved: from fastjournal.log import AsyncCommitLog",
    DeprecationWarning,
    stacklevel=2,
)

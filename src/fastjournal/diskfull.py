"""What a failed write means: the one rule for "the disk is full".

Rules:

1. Full is: no space (ENOSPC), no quota (EDQUOT), a file at its limit (EFBIG), or a write that was
   cut short, which is how Linux says that only so much still fits. It is `NoSpace`, and passes.
2. Everything else is `WriteFailed`: nobody knows whether it passes.
"""

from __future__ import annotations

import errno

from fastjournal.errors import JournalFault, NoSpace, WriteFailed

TYPE_CHECKING = False  # `typing` would be half of what a producer's import costs
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["is_full", "short_write", "write_failure"]

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def is_full(error: OSError) -> bool:
    """Whether the disk is full."""
    return error.errno in _FULL


def write_failure(error: OSError, path: Path | str) -> JournalFault:
    """The error a caller sees for a failed and undone write."""
    kind = NoSpace if is_full(error) else WriteFailed
    failure = kind(f"{path}: {error.strerror or error}")
    failure.__cause__ = error
    return failure


def short_write(written: int, size: int) -> OSError:
    """The error of the system that a short write stands for."""
    return OSError(errno.ENOSPC, f"short write, {written} of {size} bytes")

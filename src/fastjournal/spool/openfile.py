"""A spool file that a producer writes: open for appending, under a lock that keeps it there.

Rules:

1. Who has a file open holds a shared `flock` on it, taken before its first write and without
   waiting. A forwarder renames a file only under the exclusive lock; so a file whose lock was had,
   and whose name still led to it then, is written to by nobody who could not be read.
2. What is no file of this spool's people is nobody's: it is left alone, and the next file taken.
3. A file is closed when the last thread has let go of it, never while one may be writing.
"""

from __future__ import annotations

import fcntl
import os

from fastjournal.spool.opening import ForeignFile, open_file

__all__ = ["GOING_AWAY", "NOT_THERE", "OpenFile", "open_locked"]

NOT_THERE, GOING_AWAY = -1, -2


class OpenFile:
    """A file that is being written; closed when the last thread has let go of it."""

    __slots__ = ("fd", "hour", "named", "room", "until")

    def __init__(self, fd: int, hour: int, until: int) -> None:
        self.fd = fd
        self.hour = hour
        self.named = False
        """Its name is on stable storage."""
        self.until = until
        """From this instant on another file is written."""
        self.room = 0
        """Bytes that may be written before the next look at the size of the spool."""

    def __del__(self) -> None:
        os.close(self.fd)


def open_locked(path: str) -> int:
    """A descriptor whose file cannot be removed while it is open; or `NOT_THERE`, `GOING_AWAY`."""
    try:
        fd = open_file(path, os.O_WRONLY | os.O_APPEND)
    except FileNotFoundError:
        return NOT_THERE
    except ForeignFile:
        return GOING_AWAY
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return GOING_AWAY
        try:
            same = os.path.samestat(os.lstat(path), os.fstat(fd))
        except FileNotFoundError:
            same = False
    except OSError:
        os.close(fd)
        raise
    if not same:  # it was removed between the two steps
        os.close(fd)
        return NOT_THERE
    return fd

"""A file that holds space, so that a full disk can still be left in order (F02).

Rules:

1. While all is well the reserve is on disk. When a write finds no space the reserve is given up and
   the write tried again: what ends jobs always fits.
2. Without its reserve a journal takes nothing in that makes it grow. It tries to get the reserve
   back, at most once a second; a synced reserve is the proof that there is space again. Both turns
   are told, once each.
3. An opening that finds no space for what it must write may have that of the reserve, too.
"""

import contextlib
import logging
from typing import Final, final

from fastjournal.clock import SECOND
from fastjournal.errors import NoSpace
from fastjournal.log.files import file_size, make_file
from fastjournal.log.stream import Stream

__all__ = ["RESERVE_SIZE", "Reserve", "free_reserve"]

RESERVE_SIZE: Final = 1024 * 1024
_NAME: Final = "reserve"
_log: Final = logging.getLogger(__name__)


@final
class Reserve:
    """The space a journal holds back."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._path = stream.path / _NAME
        self._asked = 0
        self.is_kept = self._take()

    def give_up(self) -> bool:
        """Free the space; False if it was free already."""
        if not self.is_kept:
            return False
        self.is_kept = False
        self._asked = self._stream.clock.monotonic()
        _log.error(
            "%s: the disk is full: jobs can be finished, but none taken in; free some space,"
            " it goes on by itself",
            self._stream.path,
        )
        with contextlib.suppress(OSError):
            self._stream.files.remove(self._path)
        return True

    def check(self) -> None:
        """Refuse to grow while the disk is full."""
        if self.is_kept:
            return
        now = self._stream.clock.monotonic()
        if now - self._asked >= SECOND:
            self._asked = now
            self.is_kept = self._take()
            if self.is_kept:
                _log.warning("%s: there is space again, jobs are taken in", self._stream.path)
        if not self.is_kept:
            raise NoSpace("the disk is full: jobs can be finished, but none taken in")

    def _take(self) -> bool:
        files, path = self._stream.files, self._path
        try:
            if files.exists(path):
                if file_size(files, path) == RESERVE_SIZE:
                    return True
                files.remove(path)
            make_file(files, path, [bytes(RESERVE_SIZE)])
        except OSError:
            with contextlib.suppress(OSError):
                files.remove(path)
            return False
        return True


def free_reserve(stream: Stream) -> bool:
    """Free what an earlier opening has held back; False if there is nothing."""
    path = stream.path / _NAME
    if not stream.files.exists(path):
        return False
    with contextlib.suppress(OSError):
        stream.files.remove(path)
    return not stream.files.exists(path)

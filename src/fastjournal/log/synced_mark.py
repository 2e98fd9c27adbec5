"""The side file that says how far a log is known to be safe.

    synced.pos   two slots: where the appender began, and how far the newest segment was synced

Rules:

1. The slot of `begin` is synced, so recovery always finds one mark; the slot of `set` is not: it
   may be old, never too new. Recovery takes damage before it for damage, not for a tear.
2. The appender's lock must be the file that has its name. If the directory was replaced under a
   running appender, what it writes is in no log.
"""

import contextlib
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple, final

import google_crc32c

from fastjournal.errors import SegmentError, because, short_write, write_failure
from fastjournal.log.files import FileLock, Files, Identity, read_file

__all__ = ["APPEND_LOCK", "SYNCED_MARK", "Mark", "SyncedMark"]

SYNCED_MARK: Final = "synced.pos"
APPEND_LOCK: Final = "append.lock"

_MARK: Final = Struct(">QQq16s")
_CRC: Final = Struct(">I")
_SLOT: Final = 64  # bytes; the slot of `begin`, then the slot of `set`


class Mark(NamedTuple):
    """What the side file says: everything before `offset` of `segment` was synced once."""

    segment: int
    offset: int
    last_time: int
    """TIME of the newest record at that moment, ns since 1970; 0 in an empty stream."""
    boot: bytes = b""
    """The run of the operating system in which this was written."""


@final
class SyncedMark:
    """The side file that remembers how far the log is safe."""

    def __init__(self, files: Files, directory: Path, lock: FileLock | None = None) -> None:
        """`lock`: the appender's, whose file must stay the one that has its name (rule 2)."""
        self._lock_path = directory / APPEND_LOCK
        self._lock = lock
        self._files = files
        self._directory = directory
        self._boot = files.boot_id()
        try:
            self._handle = files.open_in_place(directory / SYNCED_MARK)
        except OSError as error:
            raise write_failure(error, directory / SYNCED_MARK) from error

    def begin(self, segment: int, offset: int, last_time: int) -> None:
        """Remember where an appender begins; durable, so that recovery always finds one mark.

        Both slots are overwritten in place, which takes no room on a full disk.
        """
        try:
            data = self._encode(segment, offset, last_time).ljust(2 * _SLOT, b"\0")
            if (written := self._handle.write_at(data, 0)) != len(data):
                raise short_write(written, len(data))
            self._handle.sync()
            self._files.sync_directory(self._directory)
        except OSError as error:
            raise write_failure(error, self._directory / SYNCED_MARK) from error

    def set(self, segment: int, offset: int, last_time: int) -> None:
        """Remember that everything before this position is safe; may be lost with the machine."""
        try:
            self._handle.write_at(self._encode(segment, offset, last_time), _SLOT)
        except OSError:
            return  # a lost mark costs only precision in recovery, never data

    def stray(self, path: Path, identity: Identity) -> Path | None:
        """The first of an open file and the lock's that has lost its name to another.

        Without an `identity` only the lock's file is looked at.
        """
        if identity is not None and self._files.identity(path) != identity:
            return path
        lock = self._lock
        return None if lock is None or lock.is_named() else self._lock_path

    def close(self) -> None:
        """Release the side file."""
        with contextlib.suppress(OSError):
            self._handle.close()

    def _encode(self, segment: int, offset: int, last_time: int) -> bytes:
        body = _MARK.pack(segment, offset, last_time, self._boot)
        return body + _CRC.pack(google_crc32c.value(body))

    @staticmethod
    def read(files: Files, directory: Path) -> Mark | None:
        """The furthest mark in the side file; None if there is none that can be trusted."""
        path = directory / SYNCED_MARK
        if not files.exists(path):
            return None
        try:
            data = read_file(files, path)
        except OSError as error:
            raise because(SegmentError(path, f"cannot be read: {error}"), error) from error
        slots = (data[at : at + _MARK.size + _CRC.size] for at in (0, _SLOT))
        return max(filter(None, map(_decode_mark, slots)), default=None)


def _decode_mark(data: bytes) -> Mark | None:
    if len(data) < _MARK.size + _CRC.size:
        return None
    if _CRC.unpack_from(data, _MARK.size)[0] != google_crc32c.value(data[: _MARK.size]):
        return None
    segment, offset, last_time, boot = _MARK.unpack_from(data)
    return Mark(segment, offset, last_time, boot if any(boot) else b"")

"""Reading values back from the log.

Rules:

1. A value is read by the place of its record and checked by its CRC and TIME; a record that was
   moved by a cleaner, of this process or of another, is found again by its TIME.
2. Files stay open, a few at a time: where a cleaner has put another one in the place of one that is
   open, the old one still holds what rows know of it. What cannot be read there is looked for in
   the file that has the name.
3. What cannot be read is a `SegmentError` or `CorruptRecord`, with file and offset, to whoever
   asked for this value; all others are readable as before.
4. Values that are asked for one after the other, about in the order of the log, as consumers and
   snapshots do, are read many at once.
5. Whoever calls holds the lock of the state.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from mypy_extensions import i64

from fastjournal.errors import CorruptCommand, CorruptRecord, SegmentError, because
from fastjournal.journal.spill.records import value_at, value_in
from fastjournal.journal.state.row import Row
from fastjournal.journal.state.values import Values
from fastjournal.log.files import FileHandle
from fastjournal.log.read.by_time import Lookup
from fastjournal.log.record import BrokenRecord, record_size
from fastjournal.log.stream import Stream

__all__ = ["Fetching"]

_AROUND: Final = 160  # bytes of a record that are neither value nor key, most often
_NEAR: Final[i64] = 4096  # bytes between two values that are asked for in the order of the log
_AHEAD: Final[i64] = 64 * 1024  # bytes read at once then
_OPEN: Final = 32  # files


@final
class Fetching:
    """The way back for the values of one state."""

    def __init__(
        self, stream: Stream, values: Values, snapshot_path: Callable[[Stream, int], Path]
    ) -> None:
        """`snapshot_path`: where the snapshot of a number lies."""
        self._stream = stream
        self._snapshot_path = snapshot_path
        self._values = values
        self._files: dict[int, FileHandle] = {}
        self._last_file: i64 = 0
        self._last_offset: i64 = 0
        """Where the value lies that was read last."""
        self._ahead = b""
        """What was read ahead."""
        self._ahead_file: i64 = 0
        self._ahead_from: i64 = 0
        self.lookup = Lookup(stream)
        self.faults = 0
        """Values that could not be read back."""

    def load(self, row: Row) -> None:
        """Let a row have its value until another one comes."""
        if row.value is None:
            self._values.hold(row, self.value(row))
        else:
            self._values.use(row)

    def value(self, row: Row) -> bytes:
        """A row's value, which is not kept if it was not there."""
        value = row.value
        if value is not None:
            return value
        value = self._read_ahead(row)
        return self._fetch(row) if value is None else value

    def _read_ahead(self, row: Row) -> bytes | None:
        """The value by rule 4; None: it is not asked for in order, or has moved."""
        number = i64(row.segment)
        offset = i64(row.offset)
        passed = offset - self._last_offset
        in_order = number == self._last_file and 0 < passed <= _NEAR
        self._last_file = number
        self._last_offset = offset
        at = offset - self._ahead_from
        if number != self._ahead_file or not 0 <= at < len(self._ahead):
            if not in_order:
                return None
            try:
                handle = self._files.get(number) or self._open(number)
                self._ahead = handle.read(offset, _AHEAD)
            except OSError:
                return None
            self._ahead_file = number
            self._ahead_from = offset
            at = 0
        try:
            return value_at(self._ahead, at, row, self._stream.max_payload)
        except (BrokenRecord, CorruptCommand):  # it may only be cut off, or have moved
            self._ahead_file = 0
            return None

    def _forget_ahead(self) -> None:
        self._ahead = b""
        self._ahead_file = 0

    def open_files(self, first: int) -> None:
        """Keep what there is from this segment on readable, whoever removes it; 0: everything."""
        for number in [-first] * bool(first) + self._stream.segments()[-_OPEN + 1 :]:
            with contextlib.suppress(OSError):
                self._open(number)

    def close_files(self) -> None:
        """Let go of all files: they may be gone from the directory, and should be from the disk."""
        self._forget_ahead()
        while self._files:
            _, handle = self._files.popitem()
            with contextlib.suppress(OSError):
                handle.close()

    def _fetch(self, row: Row) -> bytes:
        try:
            return self._found(row)
        except SegmentError:
            self.faults += 1
            raise

    def _found(self, row: Row) -> bytes:
        number, offset = i64(row.segment), i64(row.offset)
        reason = "another record stands there"
        try:
            for handle in (self._files.get(number), None) if offset else ():
                try:
                    found = self._read(handle or self._open(number), row)
                except BrokenRecord as broken:
                    reason = broken.reason
                except FileNotFoundError as error:
                    if number < 0:
                        raise because(self._unreadable(number, error), error) from error
                except OSError as error:
                    raise because(self._unreadable(number, error), error) from error
                else:
                    if found is not None:
                        return found
                if handle is None:
                    break
            if number < 0:
                raise CorruptRecord(self._path(number), offset, reason)
            record = self.lookup.read(row.value_at, number, offset, row.size)
            row.segment, row.offset = number, offset = record.segment, record.offset
            found = value_in(record.payload, row)
        except CorruptCommand as error:
            damage = CorruptRecord(self._path(number), offset, str(error))
            raise because(damage, error) from error
        if found is None:
            reason = f"does not hold the value of {row.id.hex()}"
            raise CorruptRecord(self._path(number), offset, reason)
        return found

    def _read(self, handle: FileHandle, row: Row) -> bytes | None:
        limit = self._stream.max_payload
        guess = row.size + len(row.key) + _AROUND
        data = handle.read(row.offset, guess)
        try:
            return value_at(data, 0, row, limit)
        except BrokenRecord as broken:
            if not broken.torn or len(data) < guess:
                raise
        return value_at(handle.read(row.offset, record_size(limit)), 0, row, limit)

    def _open(self, number: i64) -> FileHandle:
        """Open the file that has the name, in the place of one that may have had it before."""
        handle = self._stream.files.open_read(self._path(number))
        old = self._files.pop(number, None)
        if old is None and len(self._files) >= _OPEN:
            old = self._files.pop(next(iter(self._files)))
        if old is not None:
            with contextlib.suppress(OSError):
                old.close()
        self._files[number] = handle
        return handle

    def _unreadable(self, number: int, error: OSError) -> SegmentError:
        return SegmentError(self._path(number), f"cannot be read: {error}")

    def _path(self, number: int) -> Path:
        stream = self._stream
        return stream.segment_path(number) if number > 0 else self._snapshot_path(stream, -number)

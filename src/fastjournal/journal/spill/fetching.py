"""Reading values back from the log.

Rules:

1. A value is read by the place of its record and checked by its CRC and TIME; a record that was
   moved by a cleaner, of this process or of another, is found again by its TIME.
2. Files stay open, a few at a time: where a cleaner has put another one in the place of one that is
   open, the old one still holds what rows know of it. What cannot be read there is looked for in
   the file that has the name.
3. What cannot be read is a `SegmentError` or `CorruptRecord`, with file and offset, to whoever
   asked for this value; all others are readable as before.
4. Whoever calls holds the lock of the state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from fastjournal.errors import CorruptCommand, CorruptRecord, SegmentError
from fastjournal.journal.spill.records import value_at, value_in
from fastjournal.journal.state.row import Row
from fastjournal.journal.state.values import Values
from fastjournal.log.files import FileHandle
from fastjournal.log.read.by_time import Lookup
from fastjournal.log.record import BrokenRecord, record_size
from fastjournal.log.stream import Stream

__all__ = ["Fetching"]

_AROUND = 160  # bytes of a record that are neither value nor key, most often
_AHEAD = 256 * 1024  # bytes read at once where many rows are read in the order of the log
_OPEN = 32  # files


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
        self._ahead = (0, 0, b"")  # file, offset and bytes of what was read ahead
        self.lookup = Lookup(stream)
        self.faults = 0
        """Values that could not be read back."""

    def load(self, row: Row) -> None:
        """Let a row have its value until another one comes."""
        if row.value is None:
            self._values.hold(row, self._fetch(row))
        else:
            self._values.use(row)

    def value(self, row: Row) -> bytes:
        """A row's value, which is not kept if it was not there."""
        value = row.value
        return self._fetch(row) if value is None else value

    def next_value(self, row: Row) -> bytes:
        """The same where rows are read one after the other, about in the order of the log."""
        value = row.value
        if value is not None:
            return value
        number, base, data = self._ahead
        at = int(row.offset) - base
        if row.segment != number or not 0 <= at < len(data):
            try:
                handle = self._files.get(row.segment) or self._open(row.segment)
                data, at = handle.read(row.offset, _AHEAD), 0
            except OSError:
                return self._fetch(row)
            self._ahead = row.segment, row.offset, data
        try:
            found = value_at(data, at, row, self._stream.max_payload)
        except (BrokenRecord, CorruptCommand):  # it may only be cut off, or have moved
            found = None
        if found is None:
            self._ahead = (0, 0, b"")
            return self._fetch(row)
        return found

    def open_files(self, first: int) -> None:
        """Keep what there is from this segment on readable, whoever removes it; 0: everything."""
        for number in [-first] * bool(first) + self._stream.segments()[-_OPEN + 1 :]:
            with contextlib.suppress(OSError):
                self._open(number)

    def close_files(self) -> None:
        """Let go of all files: they may be gone from the directory, and should be from the disk."""
        self._ahead = (0, 0, b"")
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
        number, offset = row.segment, row.offset
        reason = "another record stands there"
        try:
            for handle in (self._files.get(number), None) if offset else ():
                try:
                    found = self._read(handle or self._open(number), row)
                except BrokenRecord as broken:
                    reason = broken.reason
                except FileNotFoundError as error:
                    if number < 0:
                        raise self._unreadable(number, error) from error
                except OSError as error:
                    raise self._unreadable(number, error) from error
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
            raise CorruptRecord(self._path(number), offset, str(error)) from error
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

    def _open(self, number: int) -> FileHandle:
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

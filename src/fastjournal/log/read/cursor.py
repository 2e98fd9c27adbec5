"""The cursor: records of a stream in order.

Rules:

1. The list of segments is fixed at the first `next`; a file that was opened stays readable when the
   cleaner renames another over it. With `follow` the list grows as segments appear.
2. Bytes that are no record at the end of the newest segment, zeros too, are the end of the stream,
   not an error: an appender may be writing there, or was. A segment counts as newest while all
   later ones hold no record. If recovery would not take them for a tear (they were synced once, or
   a valid record follows), they are damage: `recovery.Safe` is the one judge.
3. Any other fault raises `CorruptRecord` with segment and offset, again on each later call.
4. The lock is for a consistent view: while it is held no cleaner rewrites anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from operator import length_hint
from typing import Any, Self

from fastjournal.errors import BadRequest, CorruptRecord, JournalError, SegmentError
from fastjournal.log.care.recovery import Safe
from fastjournal.log.files import FileHandle, FileLock
from fastjournal.log.record import BrokenRecord, Record, decode, decode_many, uvarint
from fastjournal.log.scan.resync import is_reserved, next_valid
from fastjournal.log.segment import HEADER_SIZE, Position
from fastjournal.log.segment_directory import SegmentDirectory, has_records, read_growing

__all__ = ["CHUNK", "Cursor"]

CHUNK = 1024 * 1024
"""Bytes read at once, unless one record is larger."""

Take = Callable[
    [bytes, int, int, int, int, int], tuple[list[Record] | int, int, BrokenRecord | None]
]
"""Takes records in: as `decode_many`, which returns them; or else says how many there were."""
_RECORD_OVERHEAD = 15 + 5 + 4


class Cursor:
    """Iterates over a stream; made by `Stream.open_cursor`."""

    def __init__(
        self,
        stream: SegmentDirectory,
        start: Position | None = None,
        *,
        after: int | None = None,
        follow: bool = False,
    ) -> None:
        if start is not None and after is not None:
            raise BadRequest("give a position or a time to start from, not both")
        self.stream = stream
        self._start = start
        self._after = after
        self._follow = follow
        self._lock: FileLock | None = None
        self._handle: FileHandle | None = None
        self.reset()

    def lock(self, timeout: float | None = None) -> None:
        """Keep cleaners out; waits for a running one, at most `timeout` seconds."""
        if self._lock is None:
            self._lock = self.stream.lock_readers(exclusive=False, timeout=timeout)

    def unlock(self) -> None:
        """Let cleaners work again."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def close(self) -> None:
        """Release the lock and the open file."""
        self._close_segment()
        self.unlock()

    def reset(self) -> None:
        """Begin again where the cursor was opened, with the segments of that moment."""
        self._close_segment()
        self._segments: list[int] | None = None
        self._index = -1  # of the open segment in _segments
        self._offset = HEADER_SIZE  # of the next read
        self._want = CHUNK
        self._records: list[Record] = []  # read from the file at once
        self._batch: Iterator[Record] = iter(self._records)  # those of them not returned yet
        self._last: Record | None = None  # of the records before these
        self._error: JournalError | None = None

    def next(self) -> Record | None:
        """The next record; None at the end of the stream."""
        while True:
            for record in self._batch:
                return record
            if not self._fill():
                return None

    def __iter__(self) -> Iterator[Record]:
        while True:
            yield from self._batch
            if not self._fill():
                return

    def batches(self) -> Iterator[list[Record]]:
        """The same records in lists, as they come from the file: the fast way to replay."""
        while True:
            batch = list(self._batch)
            if batch:
                yield batch
            if not self._fill():
                return

    def feed(self, take: Take) -> Iterator[int]:
        """Hand all records on in stretches of the file, each of which is taken in as a whole.

        Says after each how many records there were. For a cursor that was not read from.
        """
        while count := self._guarded(take):
            assert isinstance(count, int)
            yield count

    @property
    def position(self) -> Position | None:
        """Just behind the last record that was returned; None before the first."""
        returned = len(self._records) - length_hint(self._batch)
        last = self._records[returned - 1] if returned else self._last
        if last is None:
            return self._start
        size = len(last.payload)
        return Position(last.segment, last.offset + 15 + len(uvarint(size)) + size + 4)

    def __enter__(self) -> Self:
        self.lock()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fill(self) -> bool:
        records = self._guarded(decode_many)
        if self._after is not None:
            after = self._after
            while records and records[-1].time <= after:
                records = self._guarded(decode_many)
            records = [record for record in records if record.time > after]
        if self._records:
            self._last = self._records[-1]
        self._records = records
        self._batch = iter(records)
        return bool(records)

    def _guarded(self, take: Take) -> Any:
        """What `_read` gives; an error is remembered."""
        if self._error is not None:
            raise self._error
        try:
            return self._read(take)
        except JournalError as error:
            self._error = error
            raise
        except OSError as error:
            self._error = SegmentError(self._path(), f"cannot be read: {error}")
            raise self._error from error

    def _read(self, take: Take) -> list[Record] | int:
        """Some whole records, or how many; nothing at the end of the stream."""
        while self._handle is not None or self._advance():
            assert self._handle is not None
            sealed = self._is_sealed()  # asked before the read: what is sealed does not grow
            data = self._handle.read(self._offset, self._want)
            records, stop, broken = take(
                data, 0, len(data), self._number, self._offset, self.stream.max_payload
            )
            if records:
                self._offset += stop
                self._want = CHUNK
                return records
            ends_early = broken is None or broken.torn
            if ends_early and len(data) == self._want:  # a record larger than the chunk
                self._want = self.stream.max_payload + _RECORD_OVERHEAD
                continue
            if sealed:
                if data:
                    reason = "record ends early" if broken is None else broken.reason
                    raise CorruptRecord(self._path(), self._offset, reason, self._next_valid())
                self._close_segment()
            elif not data or self._is_torn(self._handle):
                return []
        return []

    def _next_valid(self) -> int | None:
        """Where the next whole record of this segment begins, behind a fault."""
        assert self._handle is not None
        size = max(0, self._handle.size() - self._offset)
        found = next_valid(self._handle.read(self._offset, size), 1, None, self.stream.max_payload)
        return None if found is None else self._offset + found

    def _is_torn(self, handle: FileHandle) -> bool:
        """Whether the end is torn; False if an appender has moved it on, an error if damaged."""
        safe = Safe.of(self.stream)  # before the bytes: an appender syncs what it has written
        data = read_growing(handle.read, self._offset, max(0, handle.size() - self._offset))
        limit = self.stream.max_payload
        try:
            decode(data, 0, len(data), limit)
        except BrokenRecord as broken:
            reserved = is_reserved(data, 0, len(data), self._offset)
            found = None if reserved else next_valid(data, 1, None, limit)
            if not safe.is_torn(self._number, self._offset, found):
                at = None if found is None else self._offset + found
                raise CorruptRecord(self._path(), self._offset, broken.reason, at) from None
            return True
        return False

    def _is_sealed(self) -> bool:
        """Whether some later segment holds a record, so that this one has its final length."""
        assert self._segments is not None
        if any(self._has_records(n) for n in self._segments[self._index + 1 :]):
            return True
        if not self._follow:
            return False
        last = self._segments[-1]  # which may be empty, as may others before the next record
        fresh = [n for n in self.stream.segments() if n > last]
        self._segments += fresh
        return any(self._has_records(n) for n in fresh)

    def _has_records(self, number: int) -> bool:
        try:
            handle = self.stream.files.open_read(self.stream.segment_path(number))
        except FileNotFoundError:  # cleaned away: it was sealed, and so is everything before it
            return True
        with closing(handle):
            return has_records(handle)

    def _advance(self) -> bool:
        """Open the next segment; False at the end of the stream."""
        if self._segments is None:
            self._segments = self.stream.segments()
            self._index = self._first_index(self._segments) - 1
        while True:
            if self._follow and self._index == len(self._segments) - 1:
                current = self._segments[self._index] if self._index >= 0 else -1
                self._segments += [n for n in self.stream.segments() if n > current]
            if self._index == len(self._segments) - 1:
                return False
            self._index += 1
            newest = self._index == len(self._segments) - 1
            try:
                self._handle, whole = self.stream.open_segment(self._number, newest=newest)
            except SegmentError as error:
                if isinstance(error.__cause__, FileNotFoundError) and self._lock is None:
                    continue  # emptied and removed by a cleaner after the list was made
                raise
            self._offset = HEADER_SIZE
            if self._start is not None and self._start.segment == self._number:
                self._offset = max(HEADER_SIZE, self._start.offset)
            if not whole:  # created but not written: look again when asked again
                self._close_segment()
                self._index -= 1
            return whole

    def _first_index(self, segments: list[int]) -> int:
        if self._start is not None:
            first = self._start.segment
            return next((i for i, n in enumerate(segments) if n >= first), len(segments))
        if self._after is None:
            return 0
        for index in range(len(segments) - 1, 0, -1):
            first_time = self._first_time(segments[index], newest=index == len(segments) - 1)
            if first_time is not None and first_time <= self._after:
                return index
        return 0

    def _first_time(self, number: int, *, newest: bool) -> int | None:
        """TIME of a segment's first record; None if that cannot be told."""
        try:
            handle, whole = self.stream.open_segment(number, newest=newest)
        except SegmentError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None  # emptied and removed by a cleaner
            raise
        try:
            # The record is checked whole: a damaged TIME must not lead past the records sought.
            head = handle.read(HEADER_SIZE, CHUNK) if whole else b""
            return decode(head, 0, len(head), self.stream.max_payload)[0]
        except BrokenRecord:
            return None
        finally:
            handle.close()

    @property
    def _number(self) -> int:
        assert self._segments is not None
        return self._segments[self._index]

    def _path(self) -> str:
        if not self._segments or self._index < 0:
            return str(self.stream.path)
        return str(self.stream.segment_path(self._number))

    def _close_segment(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

"""Reading values back from the log.

Rules:

1. A value is read by the place of its record and checked by its CRC and TIME; a record that was
   moved by a cleaner, of this process or of another, is found again by its TIME.
2. What cannot be read is a `SegmentError` or `CorruptRecord`, with file and offset, to whoever
   asked for this value; all others are readable as before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastjournal.errors import CorruptCommand, CorruptRecord, SegmentError
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import decode
from fastjournal.journal.spill.cache import Values
from fastjournal.journal.state.row import Row
from fastjournal.journal.state.stored import Stored
from fastjournal.log.read.by_time import Lookup, read_record
from fastjournal.log.record import BrokenRecord
from fastjournal.log.stream import Stream

__all__ = ["Fetching"]

_AROUND = 512  # bytes of an image that are not its value, most often


class Fetching:
    """The way back for the values of one state."""

    def __init__(
        self, stream: Stream, values: Values, snapshot_path: Callable[[Stream, int], Path]
    ) -> None:
        """`snapshot_path`: where the snapshot of a number lies."""
        self._stream = stream
        self._snapshot_path = snapshot_path
        self._values = values
        self.lookup = Lookup(stream, values.large)

    def load(self, row: Row) -> None:
        """Let a row have its value until another one comes."""
        if type(row.value) is Stored:
            self._values.hold(row, self.value(row))
        else:
            self._values.touch(row)

    def value(self, row: Row) -> bytes:
        """A row's value, which is not kept if it was not there."""
        place = row.value
        if type(place) is not Stored:
            return place
        payload = self._read(place)
        value: bytes | None = None
        try:
            command = decode(payload)
        except CorruptCommand as error:
            raise self._damage(place, str(error)) from error
        for member in command.members if isinstance(command, k.Group) else (command,):
            if getattr(member, "id", b"") != row.id:
                continue
            if isinstance(member, (k.Put, k.Value)):
                value = member.value
            elif isinstance(member, (k.Add, k.Schedule)):
                value = member.payload
        if value is None or len(value) != place.size:
            raise self._damage(place, f"does not hold the value of {row.id.hex()}")
        return value

    def _read(self, place: Stored) -> bytes:
        stream = self._stream
        if place.segment > 0:
            record = self.lookup.read(place.time, place.segment, place.offset, place.size)
            place.segment, place.offset = record.segment, record.offset
            return record.payload
        path = self._snapshot_path(stream, -place.segment)
        try:
            time, payload = read_record(
                stream.files, path, place.offset, place.size + _AROUND, stream.max_payload
            )
        except BrokenRecord as broken:
            raise self._damage(place, broken.reason) from None
        except OSError as error:
            raise SegmentError(path, f"cannot be read: {error}") from error
        if time != place.time:
            raise self._damage(place, "another record stands there")
        return payload

    def _damage(self, place: Stored, reason: str) -> CorruptRecord:
        stream, number = self._stream, place.segment
        path = stream.segment_path(number) if number > 0 else self._snapshot_path(stream, -number)
        return CorruptRecord(path, place.offset, reason)

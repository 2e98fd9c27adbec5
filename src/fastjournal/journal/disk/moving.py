"""Where the values of rows go when upkeep rewrites the files they lie in.

Rules:

1. A cleaner moves records inside their segment: their new places are noted after the files were
   replaced. Until then, and for whatever another process cleans, values are found by TIME.
2. A snapshot takes values out of the segments below it: their places in the snapshot are noted
   before any of these segments, or an older snapshot, goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastjournal.journal.engine.engine import Engine, Moved
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import decode
from fastjournal.log.care.cleaner import CleanFunction
from fastjournal.log.record import Record, record_size
from fastjournal.log.segment import HEADER_SIZE

__all__ = ["Moving"]

_PUT, _GROUP = 0x20, 44


class Moving:
    """Follows the records that hold large values through one piece of upkeep."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._large = engine.values.large
        self._moved: list[Moved] = []
        self._segment = 0
        self._offset = HEADER_SIZE

    def watched(self, clean: CleanFunction) -> CleanFunction:
        """A clean function that answers as `clean` does, watched."""

        def judge(path: Path, record: Record) -> bool:
            drop = clean(path, record)
            if not drop:
                self._keep(record)
            return drop

        return judge

    def cleaned(self) -> None:
        """The cleaned segments are in place."""
        self._engine.moved(self._moved)
        self._moved.clear()

    def imaged(self, first: int, time: int, offset: int, payloads: Sequence[bytes]) -> None:
        """Images from a TIME and an offset on were written to the snapshot of this number."""
        for at, payload in enumerate(payloads):
            if payload[0] == _PUT and len(payload) >= self._large:
                self._moved.append((payload[1:17], time + at, -first, offset))
            offset += record_size(len(payload))

    def snapped(self, first: int) -> None:
        """The snapshot is complete; what it covers is about to go."""
        self._engine.moved(self._moved, below=first)
        self._moved.clear()

    def _keep(self, record: Record) -> None:
        time, payload, segment, _ = record
        if segment != self._segment:
            self._segment, self._offset = segment, HEADER_SIZE
        if len(payload) >= self._large:
            for row_id in _rows_of(payload):
                self._moved.append((row_id, time, segment, self._offset))
        self._offset += record_size(len(payload))


def _rows_of(payload: bytes) -> set[bytes]:
    if payload[0] != _GROUP:
        return {payload[1:17]}
    command = decode(payload)
    assert isinstance(command, k.Group)
    return {getattr(member, "id", b"") for member in command.members}

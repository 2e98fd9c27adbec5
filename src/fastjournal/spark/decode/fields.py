"""The fields of commands as columns: payloads of a chunk decoded all at once.

Compiled where numba is installed (`fields_numba`), else with numpy; tested equal.

Rules:

1. A payload that does not parse to its last byte has no fields: its row is marked in `bad`.
2. What a kind does not carry is marked missing, never zero.
3. Only kinds 1 to 4 and 32 have fields here; the meaning of all others is the state machine's.
4. Times come out as ns since 1970; a zero time is missing. A job with no time to live never
   expires; one whose end does not fit 64 bits expires at the last instant that does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastjournal.log.record import YEAR_1
from fastjournal.log.scan.scan import Chunk, engines

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = ["NUMBERS", "SLICES", "Fields"]

NUMBERS = ("rank", "due", "inserted", "expires", "lease_ms", "max_attempts", "max_fails")
SLICES = ("queue", "key", "value", "result")

_MILLISECOND = 1_000_000
_SECOND = 1_000_000_000
_MAX_INSTANT = 2**63 - 1


class _Cursor:
    """One reading position per row; every step moves all of them."""

    def __init__(self, view: Array, at: Array, end: Array) -> None:
        import numpy as np

        self._np = np
        self._view = view
        self._last = len(view) - 1
        self.at = at.copy()
        self.end = end
        self.bad = np.zeros(len(at), dtype=bool)

    def byte(self) -> Array:
        self.bad |= self.at >= self.end
        value = self._view[self._np.minimum(self.at, self._last)].astype(self._np.int64)
        self.at += 1
        return value

    def uvarint(self) -> Array:
        """Unsigned LEB128 up to 63 bits; longer, or not in its shortest form, is bad."""
        np = self._np
        value = self.byte()
        more = value >= 0x80
        value &= 0x7F
        shift = 7
        while more.any():
            if shift > 56:
                self.bad |= more
                break
            rows = np.flatnonzero(more)
            at = self.at[rows]
            self.bad[rows] |= at >= self.end[rows]
            byte = self._view[np.minimum(at, self._last)].astype(np.int64)
            self.bad[rows] |= byte == 0
            value[rows] |= (byte & 0x7F) << shift
            self.at[rows] += 1
            more = np.zeros(len(more), dtype=bool)
            more[rows] = (byte >= 0x80) & ~self.bad[rows]
            shift += 7
        return value

    def zigzag(self) -> Array:
        value = self.uvarint()
        return (value >> 1) ^ -(value & 1)

    def slice(self) -> tuple[Array, Array]:
        """Start and size of uvarint-counted bytes."""
        np = self._np
        size = self.uvarint()
        self.bad |= size > self.end - self.at
        size = np.where(self.bad, 0, size)
        start = np.where(self.bad, 0, self.at)
        self.at = np.where(self.bad, self.at, self.at + size)
        return start, size

    def big(self, width: int) -> Array:
        """Big-endian unsigned integer of `width` bytes, as int64."""
        value = self.byte()
        for _ in range(width - 1):
            value = (value << 8) | self.byte()
        return value

    def go_time(self) -> Array:
        """15 bytes of TIME as ns since 1970; 0 for the zero time."""
        np = self._np
        version = self.byte()
        seconds = self.big(8)
        nanos = self.big(4)
        zone = self.big(2)
        zero = (seconds == 0) & (nanos == 0)
        unix = np.where(zero, 0, seconds - YEAR_1)
        self.bad |= (version != 1) | (nanos >= _SECOND) | ((zone != 0) & (zone != 0xFFFF))
        self.bad |= (unix > 9_223_372_035) | (unix < -9_223_372_035)
        found: Array = np.where(self.bad, 0, unix * _SECOND + np.where(zero, 0, nanos))
        return found


class Fields:
    """Decoded columns of one chunk; see `number`, `slice_of` and `bad`."""

    def __init__(self, chunk: Chunk, engine: str | None = None) -> None:
        import numpy as np

        rows = len(chunk)
        self._np = np
        self._chunk = chunk
        if (engine or engines()[0]) == "numba":
            self._parse_compiled(chunk)
            return
        self.bad = np.zeros(rows, dtype=bool)
        """Rows whose payload does not parse."""
        self._numbers = {name: np.zeros(rows, dtype=np.int64) for name in NUMBERS}
        self._missing = {name: np.ones(rows, dtype=bool) for name in (*NUMBERS, *SLICES)}
        self._starts = {name: chunk.starts.copy() for name in SLICES}
        self._sizes = {name: np.zeros(rows, dtype=np.int64) for name in SLICES}
        view = chunk.bytes_view()
        ends = chunk.starts + chunk.sizes
        kinds = chunk.kinds
        for parse, mask in (
            (self._job, (kinds == 1) | (kinds == 2)),
            (self._result, (kinds == 3) | (kinds == 4)),
            (self._put, kinds == 32),
        ):
            where = np.flatnonzero(mask)
            if len(where):
                cursor = _Cursor(view, chunk.starts[where] + 17, ends[where])
                cursor.bad |= chunk.sizes[where] < 17
                parse(cursor, where)
                self.bad[where] = cursor.bad
        for name, missing in self._missing.items():
            missing |= self.bad
            if name in SLICES:
                self._starts[name][self.bad] = chunk.starts[self.bad]
                self._sizes[name][self.bad] = 0

    def _parse_compiled(self, chunk: Chunk) -> None:
        from fastjournal.spark.decode.field_kernel import parse

        np, rows = self._np, len(chunk)
        numbers = np.zeros((len(NUMBERS), rows), dtype=np.int64)
        starts = np.empty((len(SLICES), rows), dtype=np.int64)
        starts[:] = chunk.starts
        sizes = np.zeros((len(SLICES), rows), dtype=np.int64)
        missing = np.ones((len(NUMBERS) + len(SLICES), rows), dtype=bool)
        self.bad = np.zeros(rows, dtype=bool)
        parse(
            chunk.bytes_view(), chunk.starts, chunk.sizes, chunk.kinds,
            numbers, starts, sizes, missing, self.bad,
        )  # fmt: skip
        self._numbers = dict(zip(NUMBERS, numbers, strict=True))
        self._missing = dict(zip((*NUMBERS, *SLICES), missing, strict=True))
        self._starts = dict(zip(SLICES, starts, strict=True))
        self._sizes = dict(zip(SLICES, sizes, strict=True))

    def number(self, name: str) -> tuple[Array, Array]:
        """Values and the mask of missing ones."""
        return self._numbers[name], self._missing[name]

    def slice_of(self, name: str) -> tuple[Array, Array, Array]:
        """Starts and sizes in the segment, and the mask of missing ones."""
        return self._starts[name], self._sizes[name], self._missing[name]

    def _keep(self, name: str, where: Array, values: Array, *, time: bool = False) -> None:
        self._numbers[name][where] = values
        self._missing[name][where] = values == 0 if time else False

    def _keep_slice(self, name: str, where: Array, found: tuple[Array, Array], bad: Array) -> None:
        start, size = found
        self._starts[name][where] = self._np.where(bad, self._starts[name][where], start)
        self._sizes[name][where] = size
        self._missing[name][where] = False

    def _job(self, cursor: _Cursor, where: Array) -> None:
        queue = cursor.slice()
        lease = cursor.uvarint()
        ttl = cursor.uvarint()
        priority = cursor.zigzag()
        attempts = cursor.uvarint()
        fails = cursor.uvarint()
        value = cursor.slice()
        scheduled = cursor.go_time()
        created = cursor.go_time()
        cursor.bad |= cursor.at != cursor.end
        due = self._np.where(scheduled == 0, created, scheduled)
        self._keep_slice("queue", where, queue, cursor.bad)
        self._keep_slice("value", where, value, cursor.bad)
        self._keep("lease_ms", where, lease)
        self._keep("rank", where, -priority)
        self._keep("max_attempts", where, attempts)
        self._keep("max_fails", where, fails)
        self._keep("due", where, due, time=True)
        self._keep("inserted", where, created, time=True)
        late = ttl > (_MAX_INSTANT - due) // _MILLISECOND
        expires = due + self._np.where(late, 0, ttl) * _MILLISECOND
        expires = self._np.where(late, _MAX_INSTANT, self._np.where(ttl == 0, 0, expires))
        self._keep("expires", where, expires, time=True)

    def _result(self, cursor: _Cursor, where: Array) -> None:
        np = self._np
        # The documented form ends after the id; it stands for an empty result.
        bare = cursor.at == cursor.end
        cursor.end = np.where(bare, cursor.end + 1, cursor.end)
        start, size = cursor.slice()
        size = np.where(bare, 0, size)
        start = np.where(bare, self._chunk.starts[where] + 17, start)
        cursor.bad = ~bare & (cursor.bad | (cursor.at != cursor.end))
        self._keep_slice("result", where, (start, size), cursor.bad)

    def _put(self, cursor: _Cursor, where: Array) -> None:
        cursor.bad |= cursor.byte() != 1
        self._keep_slice("queue", where, cursor.slice(), cursor.bad)
        self._keep_slice("key", where, cursor.slice(), cursor.bad)
        aliases = cursor.uvarint()
        while (aliases > 0).any():
            more = (aliases > 0) & ~cursor.bad
            if not more.any():
                break
            before = cursor.at.copy()
            bad = cursor.bad.copy()
            cursor.slice()
            cursor.at = self._np.where(more, cursor.at, before)
            cursor.bad = self._np.where(more, cursor.bad, bad)
            aliases = aliases - 1
        self._keep("rank", where, cursor.zigzag())
        self._keep("due", where, cursor.big(8), time=True)
        self._keep("inserted", where, cursor.big(8), time=True)
        cursor.big(8)
        self._keep("expires", where, cursor.big(8), time=True)
        cursor.uvarint()
        cursor.byte()
        self._keep_slice("value", where, cursor.slice(), cursor.bad)
        cursor.byte()
        self._keep("lease_ms", where, cursor.uvarint())
        for name in ("", "", "", "max_attempts", "", "max_fails"):
            value = cursor.uvarint()
            if name:
                self._keep(name, where, value)
        cursor.bad |= cursor.at != cursor.end

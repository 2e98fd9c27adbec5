"""A whole segment to columns in one pass.

Two engines behind one function, tested equal: compiled kernels when numba is installed, a plain
Python walk with numpy columns otherwise. `verify` needs neither.

Rules:

1. Every record's CRC is checked, whatever is asked for; no filter hides damage.
2. What is wrong with a record is said by `log.record`, never here.
3. A fault with a valid record anywhere behind it is damage. A fault with none behind it is the torn
   tail, and that is no error in the newest segment that holds data; in any other it is damage. Who
   knows what was synced gives a rule of its own (`recovery.Safe.is_torn`).
4. FAILFAST raises CorruptRecord at the first damage, PERMISSIVE yields it in place of the records
   it hides, DROPMALFORMED goes on behind it and only counts it.
5. Records come out in file order. Bounds on TIME and on kinds are applied after the check.

numpy, numba and pyarrow are imported when first needed: the base installation has none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fastjournal.errors import CorruptRecord, SettingError
from fastjournal.log.record import MAX_PAYLOAD, MIN_RECORD, BrokenRecord, decode
from fastjournal.log.segment import HEADER_SIZE

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = [
    "DROPMALFORMED",
    "FAILFAST",
    "PERMISSIVE",
    "Chunk",
    "Damage",
    "Scan",
    "TearRule",
    "Verdict",
    "engines",
    "gaps_to_binary",
    "next_valid",
    "verify",
    "warm_up",
]

FAILFAST = "FAILFAST"
PERMISSIVE = "PERMISSIVE"
DROPMALFORMED = "DROPMALFORMED"

Buffer: TypeAlias = bytes | mmap
TearRule: TypeAlias = Callable[[int, int | None], bool]
"""Whether a fault at an offset, with the next valid record there or nowhere, is a tear."""
_Walk: TypeAlias = Callable[..., tuple[int, int, bool]]

# Every legal TIME (years 1678 to 2262) begins with these bytes: version 1, seconds below 2**40.
_TIME_PREFIX = b"\x01\x00\x00\x00"

# A chunk must fit the 32-bit offsets of an Arrow binary array and a worker's memory.
_ROWS = 65_536
_SPAN = 64 << 20


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that are no record."""

    offset: int
    end: int
    reason: str


def next_valid(data: Buffer, at: int, end: int, max_payload: int = MAX_PAYLOAD) -> int | None:
    """Offset of the first whole, CRC-valid record at or after `at`; None when there is none."""
    while (at := data.find(_TIME_PREFIX, at, end)) >= 0 and at + MIN_RECORD <= end:
        try:
            decode(data, at, end, max_payload)  # type: ignore[arg-type]
        except BrokenRecord:
            at += 1
        else:
            return at
    return None


def _fault(data: Buffer, at: int, end: int, max_payload: int) -> BrokenRecord:
    try:
        decode(data, at, end, max_payload)  # type: ignore[arg-type]
    except BrokenRecord as broken:
        return broken
    raise AssertionError(f"the engine refused a valid record at offset {at}")


def gaps_to_binary(data: Any, starts: Any, sizes: Any, missing: Any = None) -> pa.Array:
    """Slices of a buffer as an Arrow binary array, without a loop in Python.

    The buffer itself is the value buffer of an array whose offsets are start0, end0, start1, end1
    and so on: its even entries are the slices, the odd ones the gaps between them. `starts` must
    ascend and the slices must not overlap. `missing` marks rows that become null.
    """
    import numpy as np
    import pyarrow as pa

    rows = len(starts)
    if rows == 0:
        return pa.array([], pa.binary())
    base = int(starts[0])
    limit = int(starts[-1]) + int(sizes[-1])
    offsets = np.empty(2 * rows, dtype=np.int32)
    offsets[0::2] = starts - base
    offsets[1::2] = starts + sizes - base
    values = pa.py_buffer(memoryview(data)[base:limit])
    gappy = pa.Array.from_buffers(pa.binary(), 2 * rows - 1, [None, pa.py_buffer(offsets), values])
    pick = pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32), mask=missing)
    return gappy.take(pick)


@dataclass(slots=True)
class Chunk:
    """Consecutive records of one segment as columns; the arrays are the chunk's own."""

    data: Buffer
    times: np.ndarray[Any, Any]
    """Ns since 1970, int64."""
    offsets: np.ndarray[Any, Any]
    """Where each record begins in the file, int64."""
    starts: np.ndarray[Any, Any]
    """Where each payload begins, int64."""
    sizes: np.ndarray[Any, Any]
    """Payload bytes, int64."""
    kinds: np.ndarray[Any, Any]
    """First payload byte, uint8; 0 for an empty payload."""

    def __len__(self) -> int:
        return len(self.times)

    def bytes_view(self) -> np.ndarray[Any, Any]:
        """The segment as an array of uint8."""
        import numpy as np

        return np.frombuffer(self.data, dtype=np.uint8)

    def payloads(self) -> pa.Array:
        """The payloads as Arrow binary."""
        return gaps_to_binary(self.data, self.starts, self.sizes)

    def ids(self) -> np.ndarray[Any, Any]:
        """Payload bytes 1 to 16 as an array of (rows, 16); zero where the payload is shorter."""
        import numpy as np

        view = self.bytes_view()
        short = self.sizes < 17
        first = np.where(short, 0, self.starts + 1)
        found = (
            np.lib.stride_tricks.sliding_window_view(view, 16)[first]
            if len(view) >= 16
            else (np.zeros((len(self), 16), dtype=np.uint8))
        )
        if short.any():
            found = found.copy()
            found[short] = 0
        return found

    def select(self, mask: Any) -> Chunk:
        """The records for which `mask` is true."""
        return Chunk(
            self.data,
            self.times[mask],
            self.offsets[mask],
            self.starts[mask],
            self.sizes[mask],
            self.kinds[mask],
        )


def _python_walk(
    data: Buffer, at: int, stop: int, largest: int, rows: int, *columns: Any
) -> tuple[int, int, bool]:
    """The contract of the compiled `walk`, by `record.decode` and a loop."""
    times: list[int] = []
    offsets: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    kinds = bytearray()
    sound = True
    while len(times) < rows and at < stop:
        try:
            time, start, end, after = decode(data, at, stop, largest)  # type: ignore[arg-type]
        except BrokenRecord:
            sound = False
            break
        times.append(time)
        offsets.append(at)
        starts.append(start)
        ends.append(end)
        kinds.append(data[start] if end > start else 0)
        at = after
    found = len(times)
    for column, values in zip(columns, (times, offsets, starts, ends, kinds), strict=True):
        column[:found] = values if values is not kinds else memoryview(kinds)
    columns[3][:found] -= columns[2][:found]
    return found, at, sound


def engines() -> tuple[str, ...]:
    """The engines that can run here, fastest first."""
    if find_spec("numpy") is None:
        return ()
    return ("numpy",) if find_spec("numba") is None else ("numba", "numpy")


@cache
def _walker(engine: str | None) -> tuple[str, _Walk]:
    known = engines()
    if not known:
        raise SettingError("columns need numpy: pip install 'fastjournal[spark]'", name="engine")
    name = engine or known[0]
    if name not in known:
        raise SettingError(f"engine {name!r} is none of {', '.join(known)}", name="engine")
    if name == "numba":
        from fastjournal.log.scan_numba import walk

        return name, walk
    return name, _python_walk


def warm_up() -> None:
    """Load the engine, so that a process forked from this one has it at once."""
    if engines():
        for _ in Scan(bytes(HEADER_SIZE)):
            pass


class Scan:
    """One pass over a segment's bytes: iterate for chunks and, in PERMISSIVE, damage.

    `end` is where the sound part ends and `torn` whether bytes of a torn tail stand behind it; both
    count once the iteration is over. `damage` lists what was met.
    """

    def __init__(
        self,
        data: Buffer,
        *,
        path: Path | str = "",
        start: int = HEADER_SIZE,
        end: int | None = None,
        newest: bool = False,
        torn: TearRule | None = None,
        mode: str = FAILFAST,
        after: int | None = None,
        upto: int | None = None,
        kinds: Collection[int] | None = None,
        engine: str | None = None,
        rows: int = _ROWS,
        span: int = _SPAN,
        max_payload: int = MAX_PAYLOAD,
    ) -> None:
        if mode not in {FAILFAST, PERMISSIVE, DROPMALFORMED}:
            raise SettingError(f"mode: unknown {mode!r}", name="mode")
        self._data = data
        self._path = path
        self._start = start
        self._stop = len(data) if end is None else end
        self._is_torn = torn or (lambda at, following: newest and following is None)
        self._mode = mode
        self._after = after
        self._upto = upto
        self._kinds = kinds
        self._rows = rows
        self._span = span
        self._max_payload = max_payload
        self.engine, self._walk = _walker(engine)
        self.records = 0
        self.end = start
        self.torn = False
        self.damage: list[Damage] = []

    def __iter__(self) -> Iterator[Chunk | Damage]:
        import numpy as np

        at = self._start
        view = np.frombuffer(self._data, dtype=np.uint8) if self.engine == "numba" else self._data
        wanted = None
        if self._kinds is not None:
            wanted = np.zeros(256, dtype=bool)
            wanted[list(self._kinds)] = True
        while at < self._stop:
            columns = [np.empty(self._rows, dtype=np.int64) for _ in range(4)]
            columns.append(np.empty(self._rows, dtype=np.uint8))
            # A window no longer than `span` beyond one whole record of the largest size.
            window = min(self._stop, at + self._span)
            found, reached, sound = self._walk(
                view, at, window, self._max_payload, self._rows, *columns
            )
            if not found and not sound and window < self._stop:
                window = min(self._stop, at + self._max_payload + 64)
                found, reached, sound = self._walk(
                    view, at, window, self._max_payload, self._rows, *columns
                )
            if found:
                self.records += found
                chunk = Chunk(self._data, *(column[:found] for column in columns))
                chunk = self._bounded(chunk, wanted)
                if len(chunk):
                    yield chunk
            at = reached
            if sound or (window < self._stop and found):
                continue
            resume = self._fault(at)
            if resume is None:
                self.end = at
                self.torn = True
                return
            if self._mode == PERMISSIVE:
                yield self.damage[-1]
            at = resume
        self.end = at

    def _bounded(self, chunk: Chunk, wanted: Any) -> Chunk:
        mask = None
        if self._after is not None and int(chunk.times.min()) <= self._after:
            mask = chunk.times > self._after
        if self._upto is not None and int(chunk.times.max()) > self._upto:
            early = chunk.times <= self._upto
            mask = early if mask is None else mask & early
        if wanted is not None:
            named = wanted[chunk.kinds]
            mask = named if mask is None else mask & named
        return chunk if mask is None else chunk.select(mask)

    def _fault(self, at: int) -> int | None:
        """Judge the bytes at `at`: None for the torn tail, else where to go on."""
        broken = _fault(self._data, at, self._stop, self._max_payload)
        resume = next_valid(self._data, at + 1, self._stop, self._max_payload)
        if self._is_torn(at, resume):
            return None
        if self._mode == FAILFAST:
            raise CorruptRecord(self._path, at, broken.reason, resume)
        end = self._stop if resume is None else resume
        self.damage.append(Damage(at, end, broken.reason))
        return end


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `verify` found in one segment."""

    records: int
    first_time: int | None
    last_time: int | None
    end: int
    """Where the sound records end."""
    torn: bool
    """Bytes of a torn tail follow; only said of the newest segment."""
    damage: tuple[Damage, ...]
    payload_bytes: int = 0


def verify(
    data: Buffer,
    *,
    start: int = HEADER_SIZE,
    end: int | None = None,
    newest: bool = False,
    torn: TearRule | None = None,
    max_payload: int = MAX_PAYLOAD,
) -> Verdict:
    """Check every record of a segment; needs neither numpy nor numba, uses them when there."""
    rule = torn or (lambda at, following: newest and following is None)
    if engines():
        return _verify_columns(data, start, end, rule, max_payload)
    return _verify_plain(data, start, end, rule, max_payload)


def _verify_columns(
    data: Buffer, start: int, end: int | None, torn: TearRule, max_payload: int
) -> Verdict:
    scan = Scan(data, start=start, end=end, torn=torn, mode=DROPMALFORMED, max_payload=max_payload)
    first = last = None
    size = 0
    for chunk in scan:
        assert isinstance(chunk, Chunk)
        first = int(chunk.times[0]) if first is None else first
        last = int(chunk.times[-1])
        size += int(chunk.sizes.sum())
    return Verdict(scan.records, first, last, scan.end, scan.torn, tuple(scan.damage), size)


def _verify_plain(
    data: Buffer, start: int, end: int | None, torn: TearRule, max_payload: int
) -> Verdict:
    stop = len(data) if end is None else end
    at, records, size = start, 0, 0
    first = last = None
    damage: list[Damage] = []
    while at < stop:
        try:
            time, begin, end, at = decode(data, at, stop, max_payload)  # type: ignore[arg-type]
        except BrokenRecord as broken:
            resume = next_valid(data, at + 1, stop, max_payload)
            if torn(at, resume):
                return Verdict(records, first, last, at, True, tuple(damage), size)
            damage.append(Damage(at, stop if resume is None else resume, broken.reason))
            at = damage[-1].end
        else:
            records += 1
            size += end - begin
            first = time if first is None else first
            last = time
    return Verdict(records, first, last, at, False, tuple(damage), size)

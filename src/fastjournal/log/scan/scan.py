"""A whole segment to columns in one pass: the one decoder of recovery, `log verify` and Spark.

Three engines behind one class, tested equal (`log.engines`). `verify` takes the one that fits the
size; `Scan` takes the fastest unless told.

Rules:

1. Every record's CRC is checked, whatever is asked for; no filter hides damage.
2. What is wrong with a record is said by `log.record`, never here.
3. A fault with a valid record behind it is damage. A fault with none behind it is the torn
   tail, and that is no error in the newest segment that holds data; in any other it is damage. Who
   knows what was synced gives a rule of its own (`recovery.Safe.is_torn`). Where a tear would be
   none, zeros to the very end are not even that: room that the writer reserved ahead.
4. FAILFAST raises CorruptRecord at the first damage, PERMISSIVE yields it in place of the records
   it hides, DROPMALFORMED goes on behind it and only counts it.
5. Records come out in file order. Bounds on TIME and on kinds are applied after the check.

numpy, numba and pyarrow are imported when first needed: the base installation has none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fastjournal.errors import CorruptRecord, SettingError
from fastjournal.log.record import MAX_PAYLOAD
from fastjournal.log.scan.columns import Buffer, Chunk, Damage, slices_to_binary
from fastjournal.log.scan.engines import PLAIN, engines, fitting, walker
from fastjournal.log.scan.resync import fault_reason, is_blank, is_reserved, next_valid
from fastjournal.log.segment import HEADER_SIZE

__all__ = [
    "DROPMALFORMED",
    "FAILFAST",
    "PERMISSIVE",
    "Buffer",
    "Chunk",
    "Damage",
    "Scan",
    "TearRule",
    "Verdict",
    "engines",
    "fitting",
    "next_valid",
    "slices_to_binary",
    "verify",
    "warm_up",
]

FAILFAST = "FAILFAST"
PERMISSIVE = "PERMISSIVE"
DROPMALFORMED = "DROPMALFORMED"

TearRule: TypeAlias = Callable[[int, int | None], bool]
"""Whether a fault at an offset, with the next valid record there or nowhere, is a tear."""

# A chunk must fit the 32-bit offsets of an Arrow binary array and a worker's memory.
_ROWS = 65_536
_SPAN = 64 << 20


def warm_up() -> None:
    """Load the fastest engine, so that a process forked from this one has it at once."""
    for _ in Scan(bytes(HEADER_SIZE + 1), newest=True):  # one byte: an empty one is not walked
        pass


class Scan:
    """One pass over a segment's bytes: iterate for chunks and, in PERMISSIVE, damage.

    `end` is where the sound part ends and `torn` whether a torn tail stands behind it, and not just
    zeros; both count once the iteration is over. `damage` lists what was met.
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
        base: int = 0,
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
        self._base = base
        self.engine, self._walk = walker(engine)
        self.records = 0
        self.end = start
        self.torn = False
        self.damage: list[Damage] = []

    def __iter__(self) -> Iterator[Chunk | Damage]:
        at = self._start
        while at < self._stop:
            # A window no longer than `span` beyond one whole record of the largest size.
            window = min(self._stop, at + self._span)
            columns, reached, sound = self._walk(
                self._data, at, window, self._max_payload, self._rows
            )
            if reached == at and not sound and window < self._stop:
                window = min(self._stop, at + self._max_payload + 64)
                columns, reached, sound = self._walk(
                    self._data, at, window, self._max_payload, self._rows
                )
            found = len(columns[0])
            if found:
                self.records += found
                chunk = self._bounded(Chunk(self._data, *columns))
                if len(chunk):
                    yield chunk
            at = reached
            if sound or (window < self._stop and found):
                continue
            resume = self._fault(at)
            if resume is None:
                self.end = at
                return
            if self._mode == PERMISSIVE:
                yield self.damage[-1]
            at = resume
        self.end = at

    def _bounded(self, chunk: Chunk) -> Chunk:
        """The records within the bounds on TIME and kind."""
        after, upto, kinds = self._after, self._upto, self._kinds
        if after is None and upto is None and kinds is None:
            return chunk
        mask: Any
        if self.engine == PLAIN:
            mask = [
                (after is None or time > after)
                and (upto is None or time <= upto)
                and (kinds is None or kind in kinds)
                for time, kind in zip(chunk.times, chunk.kinds, strict=True)
            ]
            return chunk if all(mask) else chunk.select(mask)
        import numpy as np

        mask = np.ones(len(chunk), dtype=bool)
        if after is not None:
            mask &= chunk.times > after
        if upto is not None:
            mask &= chunk.times <= upto
        if kinds is not None:
            wanted = np.zeros(256, dtype=bool)
            wanted[list(kinds)] = True
            mask &= wanted[chunk.kinds]
        return chunk if mask.all() else chunk.select(mask)

    def _fault(self, at: int) -> int | None:
        """Judge the bytes at `at`: None for the end of the log, else where to go on."""
        blank = is_blank(self._data, at, self._stop)
        resume = None if blank else next_valid(self._data, at + 1, self._stop, self._max_payload)
        reserved = is_reserved(self._data, at, self._stop, self._base)
        if self._is_torn(self._base + at, None if reserved else resume):
            self.torn = not blank
            return None
        reason = fault_reason(self._data, at, self._stop, self._max_payload)
        if self._mode == FAILFAST:
            following = None if resume is None else self._base + resume
            raise CorruptRecord(self._path, self._base + at, reason, following)
        end = self._stop if resume is None else resume
        self.damage.append(Damage(at, end, reason))
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
    """A torn tail follows, and not just zeros; only said of the newest segment."""
    damage: tuple[Damage, ...]
    payload_bytes: int = 0
    max_time: int | None = None
    """The latest TIME, which is the last one in a log of ours."""


def verify(
    data: Buffer,
    *,
    path: Path | str = "",
    start: int = HEADER_SIZE,
    end: int | None = None,
    newest: bool = False,
    torn: TearRule | None = None,
    mode: str = DROPMALFORMED,
    max_payload: int = MAX_PAYLOAD,
    engine: str | None = None,
    base: int = 0,
) -> Verdict:
    """Check every record of a segment; needs neither numpy nor numba, uses them where they pay.

    `base`: where `data` stands in its file; faults are told by their place there.
    """
    scan = Scan(
        data,
        path=path,
        start=start,
        end=end,
        newest=newest,
        torn=torn,
        mode=mode,
        max_payload=max_payload,
        engine=engine or fitting(len(data)),
        base=base,
    )
    first = last = latest = None
    size = 0
    for chunk in scan:
        if isinstance(chunk, Damage):
            continue
        first = int(chunk.times[0]) if first is None else first
        last = int(chunk.times[-1])
        top = max(chunk.times) if scan.engine == PLAIN else int(chunk.times.max())
        latest = top if latest is None else max(latest, top)
        size += sum(chunk.sizes) if scan.engine == PLAIN else int(chunk.sizes.sum())
    return Verdict(scan.records, first, last, scan.end, scan.torn, tuple(scan.damage), size, latest)

"""Which records of a segment may go: `journal.retention` applied to whole columns. No Spark.

Rules:

1. Every answer is retention's: a survey gives the same report, a rewrite the same bytes as the
   local cleaner would give with the same state and the same hour.
2. A segment is read and checked whole before anything of it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from fastjournal.journal.disk.retention import Fate, Report, Retention, fate
from fastjournal.log.record import MAX_PAYLOAD
from fastjournal.log.scan.scan import Buffer, Chunk, Scan
from fastjournal.log.segment import HEADER_SIZE
from fastjournal.spark.kinds import BROADCAST, GROUP, KINDS
from fastjournal.spark.maintain.live_rows import LiveRows

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = ["Bounds", "Kept", "Planner", "Surveyed", "content", "kept_ranges", "survey"]

_OVERHEAD = 21  # as retention counts a record
_ENDS = (5, 6, 38)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which ends of rows may go from one segment."""

    segment: int
    horizon: int
    """The largest TIME of an end that may go."""
    pins: frozenset[bytes]
    """Rows whose ends must stay."""


@dataclass(frozen=True, slots=True)
class Surveyed:
    """One segment as a task saw it."""

    report: Report
    groups: list[tuple[int, bytes]]
    """TIME and payload of the groups that are not spent: they alone reach into other segments."""


class Planner(Retention):
    """Retention over surveys that were made elsewhere, all at once."""

    def __init__(self, rows: LiveRows) -> None:
        super().__init__(rows)  # type: ignore[arg-type]
        self._groups: dict[int, list[tuple[int, bytes]]] = {}

    def note(self, found: Surveyed) -> None:
        """Take the survey of one segment."""
        self._reports[found.report.segment] = found.report
        self._groups[found.report.segment] = found.groups

    def bounds(self, segments: Iterable[int], now: int) -> Iterator[Bounds]:
        """The segments worth rewriting, oldest first, each with its bounds."""
        for segment in self.plan(segments, now):
            self._enter(segment)
            yield Bounds(segment, self._horizon, frozenset(self._pins))
            for time, payload in self._groups[segment]:
                self.drop(segment, time, payload)
        self.finish()


class _One(Retention):
    """Retention inside one segment, with the bounds that the older ones set."""

    def __init__(self, rows: LiveRows, bounds: Bounds) -> None:
        super().__init__(rows)  # type: ignore[arg-type]
        self._horizon = bounds.horizon
        self._pins = set(bounds.pins)
        self._current = Report(bounds.segment, clean_to=0)


@dataclass(slots=True)
class _Judged:
    """One chunk with the fate of each of its records."""

    chunk: Chunk
    fates: Array
    live: Array
    rowless: list[int]
    """Records judged one by one: they concern no single row."""

    def payload(self, n: int) -> bytes:
        start = int(self.chunk.starts[n])
        return bytes(self.chunk.data[start : start + int(self.chunk.sizes[n])])


def _judge(data: Buffer, path: str, rows: LiveRows) -> Iterator[_Judged]:
    import numpy as np

    single = np.zeros(256, dtype=bool)
    single[[number for number in KINDS if number not in BROADCAST]] = True
    ends = np.zeros(256, dtype=bool)
    ends[list(_ENDS)] = True
    for chunk in Scan(data, path=path, max_payload=MAX_PAYLOAD):
        assert isinstance(chunk, Chunk)
        ids = np.ascontiguousarray(chunk.ids()).view(np.uint64)
        live = rows.find(np.ascontiguousarray(ids[:, 0]), np.ascontiguousarray(ids[:, 1]))
        known = live >= 0
        stated = rows.at[live] if len(rows) else np.zeros(len(chunk), dtype=np.int64)
        fates = np.where(
            known,
            np.where(chunk.times < stated, Fate.SPENT, Fate.KEEP),
            np.where(ends[chunk.kinds], Fate.LAST, Fate.SPENT),
        )
        odd = np.flatnonzero(~single[chunk.kinds] | (chunk.sizes < 17)).tolist()
        judged = _Judged(chunk, fates, live, odd)
        for n in odd:
            fates[n] = fate(rows, int(chunk.times[n]), judged.payload(n))  # type: ignore[arg-type]
            live[n] = -1
        yield judged


def survey(segment: int, path: str, data: Buffer, rows: LiveRows) -> Surveyed:
    """What retention's own survey of this segment would report."""
    retention = Retention(rows)  # type: ignore[arg-type]
    odd: list[tuple[int, bytes]] = []
    groups: list[tuple[int, bytes]] = []
    records = size = spent = last = last_time = expiring = total = 0
    for judged in _judge(data, path, rows):
        chunk, fates = judged.chunk, judged.fates.copy()
        odd += [(int(chunk.times[n]), judged.payload(n)) for n in judged.rowless]
        groups += [
            (int(chunk.times[n]), judged.payload(n))
            for n in judged.rowless
            if chunk.kinds[n] == GROUP and fates[n] != Fate.SPENT
        ]
        fates[judged.rowless] = -1
        sizes = chunk.sizes + _OVERHEAD
        records += int((fates >= 0).sum())
        size += int(sizes[fates >= 0].sum())
        spent += int(sizes[fates == Fate.SPENT].sum())
        ended = fates == Fate.LAST
        last += int(sizes[ended].sum())
        if ended.any():
            last_time = max(last_time, int(chunk.times[ended].max()))
        kept = judged.live[fates == Fate.KEEP]
        expires = rows.expires[kept] if len(rows) else kept
        expiring += int((expires > 0).sum())
        # Sums of ns since 1970 do not fit 64 bits.
        total += sum(expires[expires > 0].tolist())
    report = retention.survey(segment, odd)
    report.records += records
    report.size += size
    report.spent += spent
    report.last += last
    report.last_time = max(report.last_time, last_time)
    report.average = total // expiring if expiring else 0
    report.clean_to = 0 if report.spent else rows.applied
    return Surveyed(report, groups)


class Kept(NamedTuple):
    """What is left of a segment."""

    records: int
    kept: int
    ranges: list[tuple[int, int]]
    """The bytes that are kept, neighbours merged."""
    last: int
    """The largest TIME that is kept; 0 if none is."""
    dropped_to: int
    """The largest TIME that is dropped; 0 if none is."""


def kept_ranges(path: str, data: Buffer, rows: LiveRows, bounds: Bounds) -> Kept:
    """Judge the records of a segment."""
    import numpy as np

    one = _One(rows, bounds)
    grouped = bool(bounds.pins)
    records = count = last = dropped_to = 0
    ranges: list[tuple[int, int]] = []
    for judged in _judge(data, path, rows):
        chunk, fates = judged.chunk, judged.fates
        keep = fates == Fate.KEEP
        keep |= (fates == Fate.LAST) & (chunk.times > bounds.horizon)
        groups = [n for n in judged.rowless if chunk.kinds[n] == GROUP and fates[n] != Fate.SPENT]
        grouped = grouped or bool(groups)
        if grouped:
            # What a group that stays still says about a row holds the row's end back.
            for n in sorted({*np.flatnonzero(fates == Fate.LAST).tolist(), *groups}):
                keep[n] = not one.drop(bounds.segment, int(chunk.times[n]), judged.payload(n))
        records += len(chunk)
        count += int(keep.sum())
        last = int(chunk.times[keep].max(initial=last))
        dropped_to = int(chunk.times[~keep].max(initial=dropped_to))
        for start, end in _runs(chunk, np.flatnonzero(keep)):
            if ranges and ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((start, end))
    return Kept(records, count, ranges, last, dropped_to)


def _runs(chunk: Chunk, kept: Array) -> Iterator[tuple[int, int]]:
    """The byte ranges of the kept records of a chunk, neighbours merged."""
    import numpy as np

    if not len(kept):
        return
    # A run begins behind a record that is not kept and ends before one.
    gaps = np.flatnonzero(np.diff(kept) != 1)
    first = kept[np.concatenate([[0], gaps + 1])]
    last = kept[np.concatenate([gaps, [len(kept) - 1]])]
    ends = chunk.starts[last] + chunk.sizes[last] + 4
    yield from zip(chunk.offsets[first].tolist(), ends.tolist(), strict=True)


def content(data: Buffer, ranges: list[tuple[int, int]]) -> bytes:
    """A rewritten segment: the old header and the kept records."""
    return b"".join([data[:HEADER_SIZE], *(data[start:end] for start, end in ranges)])

"""Which records of a segment may go: `journal.retention` applied to whole columns. No Spark.

Rules:

1. Every answer is retention's: a survey gives the same report, a rewrite the same bytes as the
   local cleaner would give with the same state and the same hour.
2. A segment is read and checked whole before anything of it is written.
3. A group that stays holds back the ends of the rows of which it says something spent. Which rows,
   and since when, is a set of rows as large as the log makes it: surveys write it to files. Of a
   group that holds nothing but ends it is not known before the plan whether it stays: those are
   decided in the order of the log, by one task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from fastjournal.journal.disk.retention import Fate, Report, Retention, fate
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import decode
from fastjournal.log.record import MAX_PAYLOAD
from fastjournal.log.scan.scan import Buffer, Chunk, Scan
from fastjournal.log.segment import HEADER_SIZE
from fastjournal.spark.decode.groups import Commands, commands_of
from fastjournal.spark.kinds import GROUP, REMOVING, SINGLE, among
from fastjournal.spark.maintain.live_rows import LiveRows
from fastjournal.spark.maintain.row_files import Facts, RowSet, Run, Shelf, facts_array
from fastjournal.spark.storage.segments import Piece, load

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = [
    "Bounds",
    "Kept",
    "Pins",
    "Planner",
    "Surveyed",
    "byte_ranges",
    "content",
    "decide_groups",
    "join_ranges",
    "kept_ranges",
    "survey",
]

_OVERHEAD = 21  # as retention counts a record


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which ends of rows may go from one segment."""

    segment: int
    horizon: int
    """The largest TIME of an end that may go."""


@dataclass(frozen=True, slots=True)
class Surveyed:
    """Segments as a task saw them."""

    reports: list[Report]
    pins: list[Run]
    """The rows that groups with a living row hold back."""
    undecided: list[Run]
    """The members of the groups that hold nothing but ends, in the order of the log."""


class Planner(Retention):
    """Retention over surveys that were made elsewhere, all at once."""

    def __init__(self, rows: LiveRows) -> None:
        super().__init__(rows)  # type: ignore[arg-type]

    def note(self, report: Report) -> None:
        """Take the survey of one segment."""
        self._reports[report.segment] = report

    def bounds(self, segments: Iterable[int], now: int) -> Iterator[Bounds]:
        """The segments worth rewriting, oldest first, each with its bounds."""
        for segment in self.plan(segments, now):
            self._enter(segment)
            yield Bounds(segment, self._horizon)
        self.finish()


@dataclass(slots=True)
class _Judged:
    """One chunk with the fate of each of its records, and of each of their commands."""

    chunk: Chunk
    fates: Array
    commands: Commands
    parts: Array
    lows: Array
    highs: Array
    """What a command is about: a row, or the name of a queue or of a sender as an id."""
    expires: Array
    """Of rows that single records keep; 0 elsewhere."""


def _judge(data: Buffer, path: str, rows: LiveRows) -> Iterator[_Judged]:
    import numpy as np

    single, ends = among(SINGLE), among(REMOVING)
    for chunk in Scan(data, path=path, max_payload=MAX_PAYLOAD):
        assert isinstance(chunk, Chunk)
        commands = commands_of(chunk, path)
        wide = commands.chunk
        ids = wide.ids().view(np.uint64)
        lows, highs = np.ascontiguousarray(ids[:, 0]), np.ascontiguousarray(ids[:, 1])
        known, at, expires = rows.rows.find(lows, highs)
        known &= single[wide.kinds] & (wide.sizes >= 17)
        parts = np.where(
            known,
            np.where(wide.times < at, Fate.SPENT, Fate.KEEP),
            np.where(ends[wide.kinds], Fate.LAST, Fate.SPENT),
        )
        for n in np.flatnonzero(~single[wide.kinds]).tolist():
            start = int(wide.starts[n])
            payload = bytes(wide.data[start : start + int(wide.sizes[n])])
            parts[n] = fate(rows, int(wide.times[n]), payload)  # type: ignore[arg-type]
            lows[n], highs[n] = _name(payload)
        fates = np.zeros(len(chunk), dtype=parts.dtype)
        np.maximum.at(fates, commands.record, parts)
        kept = known & (parts == Fate.KEEP) & (commands.members < 0)
        yield _Judged(chunk, fates, commands, parts, lows, highs, np.where(kept, expires, 0))


def _name(payload: bytes) -> tuple[int, int]:
    """What a command that names no row is about, as an id."""
    command = decode(payload)
    name = command.queue if isinstance(command, k.Queue) else b""
    if isinstance(command, k.Sender):
        name = command.name
    digest = blake2b(payload[:1] + name, digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


class _Groups:
    """The groups of a task's segments that are not spent, as facts."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._pins = Facts()
        self._open: list[Array] = []
        self.pins: list[Run] = []
        self.undecided: list[Run] = []

    def take(self, segment: int, judged: _Judged) -> None:
        import numpy as np

        from fastjournal.spark.maintain.fact_kernel import FOUND

        if not (judged.chunk.kinds == GROUP).any():
            return
        record, times = judged.commands.record, judged.commands.chunk.times
        whole, spent = judged.fates[record], judged.parts == Fate.SPENT
        stays = (judged.commands.members >= 0) & (whole == Fate.KEEP) & spent
        if stays.any():
            lows, highs, when = (c[stays] for c in (judged.lows, judged.highs, times))
            self._pins.add(facts_array(lows, highs, when, np.zeros_like(when), FOUND))
        which = np.flatnonzero((judged.commands.members >= 0) & (whole == Fate.LAST))
        if len(which):
            lows, highs, when = (c[which] for c in (judged.lows, judged.highs, times))
            segments = np.full(len(which), segment)
            self._open.append(facts_array(lows, highs, when, segments, spent[which]))
        if max(self._pins.count, sum(map(len, self._open))) >= self._shelf.most:
            self.write()

    def write(self) -> None:
        import numpy as np

        if self._pins.count:
            self.pins.append(self._shelf.write(self._pins.rows()))
            self._pins.clear()
        if self._open:
            facts = np.concatenate(self._open)
            self.undecided.append(self._shelf.write(facts, in_order=True))
            self._open.clear()


def survey(pieces: Sequence[Piece], rows: LiveRows, shelf: Shelf) -> Surveyed:
    """What retention's own survey of these segments would report."""
    groups = _Groups(shelf)
    reports = [_survey(piece, load(piece), rows, groups) for piece in pieces]
    groups.write()
    return Surveyed(reports, groups.pins, groups.undecided)


def _survey(piece: Piece, data: Buffer, rows: LiveRows, groups: _Groups) -> Report:
    report = Report(piece.number, clean_to=rows.applied)
    expiring = total = 0
    for judged in _judge(data, piece.path, rows):
        groups.take(piece.number, judged)
        chunk, fates = judged.chunk, judged.fates
        sizes = chunk.sizes + _OVERHEAD
        report.records += len(chunk)
        report.size += int(sizes.sum())
        report.spent += int(sizes[fates == Fate.SPENT].sum())
        ended = fates == Fate.LAST
        report.last += int(sizes[ended].sum())
        report.last_time = int(chunk.times[ended].max(initial=report.last_time))
        expires = judged.expires[judged.expires > 0]
        expiring += len(expires)
        total += sum(expires.tolist())  # sums of ns since 1970 do not fit 64 bits
    report.average = total // expiring if expiring else 0
    if report.spent:
        report.clean_to = 0
    return report


def decide_groups(
    undecided: Sequence[Run], pins: RowSet, horizons: dict[int, int], shelf: Shelf
) -> Run:
    """The rows that those groups hold back which hold nothing but ends and must stay.

    `horizons`: those of the segments that are rewritten; in all others everything stays.
    """
    import numpy as np

    from fastjournal.spark.maintain.fact_kernel import FACT, FOUND

    held: dict[tuple[int, int], int] = {}
    for run in undecided:
        facts = run.open()
        if not len(facts):
            continue
        known, at, _ = pins.find(facts["low"].copy(), facts["high"].copy())
        pinned = known & (at < facts["at"])
        firsts = np.flatnonzero(np.diff(facts["at"], prepend=facts["at"][0] - 1))
        for first, last in zip(firsts, [*firsts[1:], len(facts)], strict=True):
            some = facts[first:last]
            time, segment = int(some["at"][0]), int(some["expires"][0])
            names = list(zip(some["low"].tolist(), some["high"].tolist(), strict=True))
            stays = segment not in horizons or time > horizons[segment]
            if stays or pinned[first:last].any() or any(name in held for name in names):
                for name, spent in zip(names, some["what"].tolist(), strict=True):
                    if spent:
                        held.setdefault(name, time)
    rows = np.array([(low, high, at, 0, FOUND) for (low, high), at in held.items()], dtype=FACT)
    return shelf.write(rows)


class Pins:
    """Rows whose ends must stay, each since the first group that says so."""

    def __init__(self, sets: Sequence[RowSet]) -> None:
        self._sets = [one for one in sets if len(one)]

    def hold(self, lows: Array, highs: Array, times: Array) -> Array:
        """Which of these commands are held back by a group before them."""
        import numpy as np

        found = np.zeros(len(lows), dtype=bool)
        for one in self._sets:
            known, at, _ = one.find(lows, highs)
            found |= known & (at < times)
        return found


class Kept(NamedTuple):
    """What is left of a segment."""

    records: int
    kept: int
    ranges: Array
    """The bytes that are kept: where stretches of them begin, and where those end."""
    last: int
    """The largest TIME that is kept; 0 if none is."""
    dropped_to: int
    """The largest TIME that is dropped; 0 if none is."""


def kept_ranges(path: str, data: Buffer, rows: LiveRows, bounds: Bounds, pins: Pins) -> Kept:
    """Judge the records of a segment."""
    import numpy as np

    records = count = last = dropped_to = 0
    ranges: list[Array] = []
    for judged in _judge(data, path, rows):
        chunk, commands = judged.chunk, judged.commands
        ended = judged.fates == Fate.LAST
        keep = (judged.fates == Fate.KEEP) | (ended & (chunk.times > bounds.horizon))
        asked = np.flatnonzero((ended & ~keep)[commands.record])
        held = pins.hold(judged.lows[asked], judged.highs[asked], commands.chunk.times[asked])
        keep[commands.record[asked[held]]] = True
        records += len(chunk)
        count += int(keep.sum())
        last = int(chunk.times[keep].max(initial=last))
        dropped_to = int(chunk.times[~keep].max(initial=dropped_to))
        ranges.append(byte_ranges(chunk, keep))
    return Kept(records, count, join_ranges(ranges), last, dropped_to)


def byte_ranges(chunk: Chunk, keep: Array) -> Array:
    """Where the kept records of a chunk begin and end."""
    import numpy as np

    ends = chunk.starts + chunk.sizes + 4
    return np.stack([chunk.offsets[keep], ends[keep]])


def join_ranges(ranges: Sequence[Array]) -> Array:
    """Those of consecutive chunks."""
    import numpy as np

    return np.concatenate(ranges, axis=1) if ranges else np.empty((2, 0), dtype=np.int64)


def content(data: Buffer, ranges: Array) -> bytes:
    """A rewritten segment: the old header and the kept records; nothing if none is kept."""
    import numpy as np

    from fastjournal.spark.maintain.fact_kernel import gather

    starts, ends = ranges
    if not len(starts):
        return b""
    made = np.empty(HEADER_SIZE + int((ends - starts).sum()), dtype=np.uint8)
    view = np.frombuffer(data, dtype=np.uint8)
    made[:HEADER_SIZE] = view[:HEADER_SIZE]
    gather(view, starts, ends, made, HEADER_SIZE)
    return made.tobytes()

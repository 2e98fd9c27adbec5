"""Which records the cleaner may drop without changing what replay gives.

Every record is one of

    KEEP    a living row needs it
    SPENT   nothing needs it: its row is gone, or a newer record states the whole row
    LAST    it says that its row is gone; it may go when no earlier record of the row is left

Rules:

1. A SPENT record may go at any time: what follows it on disk, the newer image or the LAST record,
   overrules it. Dropping LAST records early is what brings deleted jobs back.
2. A LAST record of TIME t may go once every older segment has been cleaned, or was found to need
   no cleaning, at a time after t: then none of them holds an earlier record of that row. A group
   that must stay pins the rows of its spent members. A snapshot counts as an older segment, cleaned
   when it was taken.
3. A segment is worth rewriting when half of its bytes can go; or when its average expiry has
   passed (WQ-CLN-6), which halves it too; or when the LAST records that wait for it are larger
   than itself, so a few spent records cannot hold back the ends of all others.
4. Answers stay right while the journal works on: a row that is gone does not come back, except by
   a record that states it anew. But they rest on records that may not be on the disk yet: **sync
   the log after a segment was judged, before the rewritten segment takes its place**.
5. Nothing is remembered over a restart; until a segment is surveyed nothing behind it is LAST.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from fastjournal.errors import SkipSegment
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import BROADCAST, TYPE_NAMES, decode
from fastjournal.journal.language.commands import Command
from fastjournal.journal.state.apply import JournalState
from fastjournal.log.record import Record
from fastjournal.model import DEFAULT_SETTINGS

__all__ = ["Fate", "Report", "Retention", "fate"]

_OF_A_ROW = frozenset(TYPE_NAMES) - BROADCAST
_ENDS = (k.DELETE, k.EXPIRE, k.PURGE)
_OVERHEAD = 21  # bytes of a record around a payload of more than 127 bytes


class Fate(IntEnum):
    """What may become of a record."""

    SPENT = 0
    LAST = 1
    KEEP = 2


def fate(state: JournalState, time: int, payload: bytes) -> Fate:
    """What may become of the record with this TIME and payload."""
    kind = payload[0] if payload else 0
    if kind in _OF_A_ROW:
        row = state.rows.get(payload[1:17])
        if row is not None:
            return Fate.SPENT if time < row.at else Fate.KEEP
        return Fate.LAST if kind in _ENDS else Fate.SPENT
    return _fate_of(state, time, decode(payload))


def _fate_of(state: JournalState, time: int, command: Command) -> Fate:
    if isinstance(command, k.Group):
        return max(_fate_of(state, time, member) for member in command.members)
    if isinstance(command, k.Mark):
        # That behind the snapshot stays: it tells that the log is not whole without one.
        newest = state.snapshot_at if command.note == k.SNAPSHOT_NOTE else state.mark_at
        return Fate.SPENT if time < newest else Fate.KEEP
    if isinstance(command, k.Queue):
        lane = state.queues.get(command.queue)
        if lane is not None and lane.settings_at:
            return Fate.SPENT if time < lane.settings_at else Fate.KEEP
        return Fate.LAST if command.settings == DEFAULT_SETTINGS else Fate.SPENT
    if isinstance(command, k.Ends):
        return Fate.SPENT if time < state.ends_at else Fate.KEEP
    if isinstance(command, k.Sender):
        if not command.mark:  # else an older mark of the name would count again
            return Fate.LAST
        known = state.senders.get(command.name)
        if known is not None:
            return Fate.SPENT if time < known[1] else Fate.KEEP
        return Fate.SPENT
    row = state.rows.get(command.id)
    if row is not None:
        return Fate.SPENT if time < row.at else Fate.KEEP
    return Fate.LAST if isinstance(command, (k.Delete, k.Expire, k.Purge)) else Fate.SPENT


@dataclass(slots=True)
class Report:
    """What a survey found in one segment."""

    segment: int
    clean_to: int
    """Rows gone by this TIME have no record here but LAST ones and pinned ones."""
    records: int = 0
    size: int = 0
    spent: int = 0
    """Bytes that may go."""
    last: int = 0
    """Bytes that may go when the older segments allow it."""
    last_time: int = 0
    """TIME of the newest LAST record."""
    average: int = 0
    """Average expiry of the rows kept; 0: none of them expires."""
    ended: int = 0
    """How many rows had ended or been restated when the survey was made."""
    pins: set[bytes] = field(default_factory=set)


class Retention:
    """Judges segments, oldest first. Survey them, then clean those of the `plan`."""

    def __init__(self, state: JournalState) -> None:
        self._state = state
        self._reports: dict[int, Report] = {}
        self._plan: list[int] = []
        self._order: list[int] = []
        self._done = 0
        self._current: Report | None = None
        self._horizon = 0
        self._pins: set[bytes] = set()
        self.snapshot_at: int | None = None
        """As of which TIME the snapshot on disk is; None: there is none."""

    @property
    def waiting(self) -> int:
        """Bytes of LAST records in the segments surveyed."""
        return sum(report.last for report in self._reports.values())

    def wants_survey(self, segment: int, now: int) -> bool:
        """Much may have changed in this segment since it was last looked at."""
        report = self._reports.get(segment)
        if report is None:
            return True
        if report.average and report.average <= now:
            return True
        return self._state.ended - report.ended > report.records // 4

    def survey(self, segment: int, records: Iterable[tuple[int, bytes]]) -> Report:
        """Look through a sealed segment: (TIME, payload) of all its records, in order."""
        state = self._state
        report = Report(segment, clean_to=state.applied, ended=state.ended)
        expiring = total = 0
        for time, payload in records:
            size = len(payload) + _OVERHEAD
            report.records += 1
            report.size += size
            what = fate(state, time, payload)
            if what is Fate.SPENT:
                report.spent += size
                continue
            self._pin(report, time, payload)
            if what is Fate.LAST:
                report.last += size
                report.last_time = time
            else:
                row = state.rows.get(payload[1:17])
                if row is not None and row.expires:
                    expiring += 1
                    total += row.expires
        report.average = total // expiring if expiring else 0
        if report.spent:
            old = self._reports.get(segment)
            report.clean_to = 0 if old is None else old.clean_to
        self._reports[segment] = report
        return report

    def plan(self, segments: Iterable[int], now: int) -> list[int]:
        """The sealed segments worth rewriting now, of all there are. Begins a cycle."""
        reports = self._reports
        known = sorted(segments)
        self._reports = {number: reports[number] for number in known if number in reports}
        waiting = sum(report.last for report in self._reports.values())
        horizon = self._start()
        plan = []
        for number in known:
            report = self._reports.get(number)
            if report is None:
                horizon = 0
                continue
            waiting -= report.last
            if _worth(report, horizon, waiting, now):
                plan.append(number)
            else:
                horizon = min(horizon, report.clean_to)
        self.begin(known, plan)
        return plan

    def begin(self, segments: Iterable[int], chosen: Iterable[int]) -> None:
        """Begin a cycle that rewrites the chosen ones of all sealed segments."""
        self._order = sorted(segments)
        self._plan = sorted(chosen)
        self._done = 0
        self._horizon = self._start()
        self._pins = set()
        self._current = None

    def clean(self, path: Path, record: Record) -> bool:
        """For `Cleaner.clean`: drop this record? Segments not in the plan are skipped."""
        if record.segment not in self._plan:
            raise SkipSegment
        return self.drop(record.segment, record.time, record.payload)

    def drop(self, segment: int, time: int, payload: bytes) -> bool:
        """Whether a record may go. Call for every record of the planned segments, in order."""
        current = self._current
        if current is None or current.segment != segment:
            current = self._enter(segment)
        what = fate(self._state, time, payload)
        if what is Fate.LAST and time <= self._horizon and not self._pinned(payload):
            what = Fate.SPENT
        if what is not Fate.SPENT:
            self._pin(current, time, payload)
        return what is Fate.SPENT

    def finish(self) -> None:
        """The cycle ended well: the last segment is in place."""
        if self._current is not None:
            self._reports[self._current.segment] = self._current
        self._current = None
        self._plan = []

    def _start(self) -> int:
        return 2**63 if self.snapshot_at is None else self.snapshot_at

    def _enter(self, segment: int) -> Report:
        """Go on to the next planned segment: all before it are in place or were left alone."""
        if self._current is not None:
            self._reports[self._current.segment] = self._current
        while self._done < len(self._order) and self._order[self._done] < segment:
            report = self._reports.get(self._order[self._done])
            self._horizon = min(self._horizon, 0 if report is None else report.clean_to)
            if report is not None:
                self._pins |= report.pins
            self._done += 1
        self._current = Report(segment, clean_to=self._state.applied, ended=self._state.ended)
        return self._current

    def _pin(self, report: Report, time: int, payload: bytes) -> None:
        """A group that stays keeps the rows of its spent members from being forgotten."""
        if payload[0] != 44:
            return
        command = decode(payload)
        assert isinstance(command, k.Group)
        for member in command.members:
            if _fate_of(self._state, time, member) is Fate.SPENT:
                report.pins.add(_name_of(member))

    def _pinned(self, payload: bytes) -> bool:
        pins = self._pins
        if self._current is not None and self._current.pins:
            pins = pins | self._current.pins
        if not pins:
            return False
        if payload[0] in _ENDS:
            return payload[1:17] in pins
        command = decode(payload)
        members = command.members if isinstance(command, k.Group) else (command,)
        return any(_name_of(member) in pins for member in members)


def _name_of(command: Command) -> bytes:
    """What a command is about: a row, a queue or a sender."""
    if isinstance(command, k.Queue):
        return command.queue
    return command.name if isinstance(command, k.Sender) else command.id


def _worth(report: Report, horizon: int, waiting: int, now: int) -> bool:
    dead = report.spent
    if report.last_time <= horizon:
        dead += report.last
    if not dead:
        return False
    if dead * 2 >= report.size:
        return True
    if report.average and report.average <= now:
        return True
    return report.spent > 0 and waiting >= report.size

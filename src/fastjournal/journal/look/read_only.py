"""A journal looked at from outside, while whoever it belongs to goes on working.

Rules:

1. A view only reads: it takes no lock that an appender wants and writes no byte. Cleaners are kept
   out while it replays, where the directory allows that.
2. It is the replay of the log as far as it goes now. Deadlines that have passed since take effect
   in the view alone, unless it follows: then its state is what the log says, and nothing else.
3. A follower that fell behind a snapshot or a cleaning begins anew.
4. It holds few values in memory, however large the journal is; the others are read when they are
   asked for.
5. Of a log whose end may still be cut off, a follower shows what lies up to a TIME (`until`). What
   comes behind waits until it is told of a later one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Self

from fastjournal.arguments import JobId, Text, id_bytes, key_bytes
from fastjournal.clock import SECOND, SYSTEM_CLOCK, Clock, SteadyClock
from fastjournal.entry_value import EntryValue, from_value
from fastjournal.errors import (
    Closed,
    CorruptCommand,
    CorruptRecord,
    LockTimeout,
    NotFound,
    SegmentError,
    TimedOut,
)
from fastjournal.journal.decide.ground import Ground
from fastjournal.journal.decide.timers import Timers
from fastjournal.journal.disk.replay import Replayed, replay
from fastjournal.journal.disk.snapshot import Snapshot, newest_snapshot, snapshot_path
from fastjournal.journal.disk.upkeep import UpkeepStatus
from fastjournal.journal.language.codec import decode
from fastjournal.journal.language.commands import Group
from fastjournal.journal.look.inspection import Inspection, JournalStatus, result_of
from fastjournal.journal.look.listing import Lister, Readable
from fastjournal.journal.spill.fetching import Fetching
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import Row
from fastjournal.journal.state.values import Values
from fastjournal.log.files import DISK, FileLock, Files
from fastjournal.log.manifest import check_segments
from fastjournal.log.read.cursor import Cursor
from fastjournal.log.record import Record
from fastjournal.log.segment import WORKQ
from fastjournal.log.segment_directory import has_records
from fastjournal.log.stream import Stream
from fastjournal.log.write.counters import Counters, LogStatus
from fastjournal.model import Job, QueueStatus, State

__all__ = [
    "EntryLook",
    "JournalView",
    "SeenEntry",
]

_LOCK_WAIT = 1.0  # seconds to wait for a cleaner
_TRIES = 3
_MEMORY = 32 * 1024 * 1024  # bytes of values
_STALE = 60 * SECOND  # a follower that slept for longer begins anew


class SeenEntry(NamedTuple):
    """An entry as it was seen."""

    key: bytes
    value: EntryValue


class EntryLook:
    """The entries of a journal that belongs to somebody else: `get` and `range` of `entries`."""

    def __init__(self, source: Readable, clock: SteadyClock) -> None:
        self._source = source
        self._clock = clock

    def get(self, key: Text, default: Any = None) -> Any:
        """The value of a key, or `default`."""
        with self._source.lock:
            row = self._source.state.entry_keys.living(key_bytes(key))
            return default if row is None or self._is_over(row) else self._value(row)

    def range(self, lower: Text = b"", upper: Text = b"") -> Iterator[SeenEntry]:
        """The entries from `lower` to `upper`, both included, in order; empty: no bound."""
        first = key_bytes(lower) if lower else b""
        last = key_bytes(upper) if upper else b""
        found: list[SeenEntry] = []
        with self._source.lock:
            walk = self._source.state.entry_keys.walk(first)
            while (row := walk.step()) is not None and (not last or walk.key <= last):
                if not self._is_over(row):
                    found.append(SeenEntry(walk.key, self._value(row)))
            walk.end()
        return iter(found)

    def _is_over(self, row: Row) -> bool:
        return 0 < row.expires < self._clock.now()

    def _value(self, row: Row) -> EntryValue:
        return from_value(row.kind, self._source.value(row))


class ReplayedState:
    """A state that was read from files, and the values that were left there."""

    last_time = 0
    """Nothing is written here."""

    def __init__(self, stream: Stream, state: JournalState) -> None:
        self.lock = threading.Lock()
        self.state = state
        self.fetching = Fetching(stream, state.values, snapshot_path)

    def load(self, row: Row) -> None:
        """Let a row have its value until another one comes."""
        self.fetching.load(row)

    def value(self, row: Row) -> bytes:
        """A row's value, which is not kept if it was not there."""
        return self.fetching.value(row)

    def settle_reading(self, time: int) -> None:
        """What was read is what is there."""


class JournalView:
    """The reading half of a `Journal`, on a directory that may be in use."""

    def __init__(
        self,
        path: str | Path,
        *,
        follow: bool = False,
        until: int | None = None,
        memory_limit: int = _MEMORY,
        clock: Clock = SYSTEM_CLOCK,
        files: Files = DISK,
    ) -> None:
        """Replay the directory, up to TIME `until`; with `follow`, `refresh` goes on from there.

        `memory_limit`: bytes of values to hold.
        """
        self._memory = memory_limit
        self.path = Path(path)
        self._clock = SteadyClock(clock)
        self._stream = Stream(self.path, WORKQ, files=files, clock=self._clock)
        self._follow = follow
        self._until = until
        self._cursor: Cursor | None = None
        self._ahead: Record | None = None
        """Read, and not to be shown yet (rule 5)."""
        self._closed = False
        self.seen: Counter[str] = Counter()
        """How many commands of each kind were followed, by name: put, lease, purge, ..."""
        self._looked = 0
        self._records = 0
        self._source: ReplayedState | None = None
        self._stream.check_restored()
        if not files.exists(self.path) or not self._stream.segments():
            raise NotFound(f"no journal in {self.path}")
        self._begin()

    def refresh(self, until: int | None = None) -> int:
        """Take in what was logged since, up to the TIME `until`; returns how many records."""
        if self._closed:
            raise Closed("the journal is closed")
        self._until = until
        now = self._clock.now()
        stale = now - self._looked > _STALE
        cursor = self._cursor
        if cursor is None or stale or self._newest() != self.replayed.snapshot:
            self._begin()
            return self._records
        self._looked = now
        return self._catch_up(cursor)

    def job(
        self, job_id: JobId | None = None, *, key: Text | None = None, queue: Text | None = None
    ) -> Job:
        """A job by its id or by its key; of a key the waiting job, else the one worked on."""
        return self._look.job(job_id, key, queue)

    def jobs(
        self,
        queue: Text | None = None,
        *,
        state: State | None = None,
        prefix: Text | None = None,
        offset: int = 0,
        limit: int = 100,
        values: bool = True,
    ) -> list[Job]:
        """Jobs of one queue or of all, in order of arrival.

        `prefix`: how their keys begin. Without `values` they come without values and results.
        """
        return self._look.jobs(queue, state, prefix, offset, limit, values)

    @property
    def state(self) -> JournalState:
        """The rows as they were replayed, for whoever serves the journal to others."""
        return self._state

    def load(self, row: Row) -> None:
        """Let a row have its value until another one comes."""
        assert self._source is not None
        self._source.load(row)

    def value(self, row: Row) -> bytes:
        """A row's value, which is not kept if it was not there."""
        assert self._source is not None
        return self._source.value(row)

    @property
    def lister(self) -> Lister:
        """Pages of jobs, for whoever serves the journal to others."""
        return self._look.lister

    def queues(self) -> list[QueueStatus]:
        """All queues that hold rows or have settings, by name."""
        return self._look.queues()

    def queue(self, name: Text) -> QueueStatus:
        """One queue."""
        return self._look.queue(name)

    def digest(self) -> str:
        """A hash of everything that a replay of the log must give again."""
        return self._look.digest()

    def status(self) -> JournalStatus:
        """The whole journal, as far as its files tell."""
        with self._lock:
            rows = self._look.row_counts()
            size, newest = self._log_size()
            counters = Counters(writes=self._records, bytes=size)
            time = self._state.applied
            log = LogStatus(0, 0, time, 0, newest, newest, False, "", counters)
            return JournalStatus(
                *rows, log, "", UpkeepStatus(), self.replayed.records, self.replay_seconds,
                self.replayed.clean, False, *self._look.kinds(),
            )  # fmt: skip

    def result(self, job_id: JobId) -> tuple[bool, bytes]:
        """A finished job's result: (done?, result); `TimedOut` if it is not finished."""
        with self._lock:
            found = result_of(self._state, id_bytes(job_id), self._clock.now())
        if found is None:
            raise TimedOut("the job is not finished")
        return found

    @property
    def entries(self) -> EntryLook:
        """The journal's key/value entries, to be read."""
        return self._entries

    def close(self) -> None:
        """Release the open file."""
        self._closed = True
        self._close_files()

    def _close_files(self) -> None:
        self._ahead = None
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            cursor.close()
        source, self._source = self._source, None
        if source is not None:
            with source.lock:
                source.fetching.close_files()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        self._close_files()
        lock = self._keep_cleaners_out()
        try:
            if lock is not None:  # else a cleaner may be at work
                check_segments(self._stream)
            started = self._clock.monotonic()
            self.replayed = self._replay()
            self.replay_seconds = (self._clock.monotonic() - started) / SECOND
            self._state = self.replayed.state
            source = self._source = ReplayedState(self._stream, self._state)
            self._lock = source.lock
            self._look = Inspection(source, self._clock)
            self._entries = EntryLook(source, self._clock)
            snapshot = self.replayed.snapshot
            source.fetching.open_files(0 if snapshot is None else snapshot.first)
            self._records = self.replayed.records
            if self._follow:
                # An image counts as stated one nanosecond after the record it follows.
                images = self.replayed.snapshot is not None and not self.replayed.records
                after = self._state.applied - int(images)
                self._cursor = self._stream.open_cursor(after=after, follow=True)
                self._catch_up(self._cursor)
        finally:
            if lock is not None:
                lock.release()
        self._looked = self._clock.now()
        if not self._follow:
            self._let_time_pass()

    def _newest(self) -> Snapshot | None:
        try:
            return newest_snapshot(self._stream)
        except FileNotFoundError:  # replaced at this very moment
            return newest_snapshot(self._stream)

    def _replay(self) -> Replayed:
        """Replay; once more if the snapshot that was being read made way for a newer one."""
        for _ in range(_TRIES):
            before = self._newest()
            try:
                return replay(self._stream, state=self._empty(), until=self._until)
            except (SegmentError, OSError):
                if self._newest() == before:
                    raise
        return replay(self._stream, state=self._empty(), until=self._until)

    def _empty(self) -> JournalState:
        return JournalState(Values(self._memory, logged=True))

    def _catch_up(self, cursor: Cursor) -> int:
        count = 0
        values = self._state.values
        while (record := self._ahead or cursor.next()) is not None:
            self._ahead = None
            if self._until is not None and record.time > self._until:
                self._ahead = record
                break
            try:
                command = decode(record.payload)
            except CorruptCommand as error:
                path = self._stream.segment_path(record.segment)
                raise CorruptRecord(path, record.offset, str(error)) from error
            values.segment, values.record = record.segment, record.offset
            self._state.apply(command, record.time)
            members = command.members if isinstance(command, Group) else (command,)
            self.seen.update(type(member).__name__.lower() for member in members)
            count += 1
        values.segment = 0
        self._records += count
        return count

    def _let_time_pass(self) -> None:
        for command in Timers(Ground(self._state)).passed(
            self._clock.now(), limit=len(self._state.rows) * 2
        ):
            self._state.apply(command, self._state.applied + 1)

    def _keep_cleaners_out(self) -> FileLock | None:
        try:
            return self._stream.lock_readers(exclusive=False, timeout=_LOCK_WAIT)
        except (LockTimeout, SegmentError):  # a long cleaning, or a disk that is only to be read
            return None

    def _log_size(self) -> tuple[int, Path]:
        """Bytes of all segments, and the newest of them that holds a record."""
        total, newest = 0, self.path
        for number in self._stream.segments():
            path = self._stream.segment_path(number)
            try:
                handle = self._stream.files.open_read(path)
            except FileNotFoundError:  # cleaned away since
                continue
            with closing(handle):
                total += handle.size()
                newest = path if has_records(handle) else newest
        return total, newest

"""The work that keeps a journal small and quick to open: cleaning and snapshots.

Rules:

1. History first: where it is archived, a segment stays as it is until it was shipped (`hold`).
2. Cleaning follows `retention`; between judging a segment and replacing it the batch under way, if
   any, is waited for, an ENDS record tells how the jobs ended whose records go, and the log is
   synced: what the judgement rests on is then on disk. Without room for that record they stay:
   who asks again how a lease ended would be told that it did not.
3. A snapshot: rotate, write, sync the log up to what the images hold, read back, checkpoint, and
   only then remove what lies below it. Without that sync a power loss could leave images of rows
   newer than the log, and new records would take the TIMEs of those that were lost. And as for the
   cleaner, a segment goes only when a later one holds a synced record: a MARK sees to that. The
   manifest says first that it may go: from then on the log is nothing without its snapshot.
4. What has ended since a snapshot was taken must stay on record until the next one: when those
   records outgrow the snapshot, the next one is taken.
5. Generations of short-lived queues begin and end as `generations` says.
6. A replicated journal is cleaned nowhere: its nodes hold the same records, up to where a snapshot
   stands for them. Its snapshot counts when what it tells is as safe as answers are (`wait_safe`),
   and what it lets go, here and on the other nodes, is archived.
7. Readers are locked out while files change; if they cannot be within a second, the cycle is
   skipped and counted. Nothing here holds the journal's lock for longer than a part of a snapshot.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import length_hint

from fastjournal.errors import LockTimeout, NoSpace, ReadOnly, SegmentError
from fastjournal.journal.disk.generations import Disposal, Generations, settings_of
from fastjournal.journal.disk.moving import let_go, note_cleaned, note_snapshot
from fastjournal.journal.disk.replay import Replayed
from fastjournal.journal.disk.retention import Retention
from fastjournal.journal.disk.scrub import Scrub
from fastjournal.journal.disk.snapshot import (
    Snapshot,
    old_snapshots,
    remove_snapshots,
    write_snapshot,
)
from fastjournal.journal.engine.engine import Engine
from fastjournal.journal.language.codec import encode
from fastjournal.journal.language.commands import PERSIST, SNAPSHOT_NOTE, Mark
from fastjournal.journal.state.row import Row, image
from fastjournal.log.care.cleaner import Cleaned, Cleaner, sealed_segments, segment_records
from fastjournal.log.files import file_size
from fastjournal.log.manifest import ManifestFile
from fastjournal.log.segment import HEADER_SIZE, parse_name
from fastjournal.log.stream import Stream

__all__ = ["ARCHIVE_WAIT", "Upkeep", "UpkeepStatus"]

ARCHIVE_WAIT = 30.0
"""Seconds that a snapshot waits for the archive; then the next one tries it."""
_PART = 500
_PART_BYTES = 1024 * 1024
_LOCK_WAIT = 1.0
_MOMENT = 0.05  # seconds
_ALL = 1 << 62


@dataclass(slots=True)
class UpkeepStatus:
    """What upkeep has done since the journal was opened."""

    cycles: int = 0
    skipped: int = 0
    segments_cleaned: int = 0
    bytes_freed: int = 0
    snapshots: int = 0
    generations: int = 0
    scrub_passes: int = 0
    """Times that every sealed segment was read again."""
    scrubbed_at: int = 0
    """When that was last, ns since 1970; 0: not yet."""
    scrub_faults: int = 0
    """Segments that were found damaged by it."""


class Upkeep:
    """Cleans and snapshots one journal; one call at a time."""

    def __init__(
        self,
        engine: Engine,
        stream: Stream,
        replayed: Replayed,
        hold: Callable[[], int] | None = None,
        wait_safe: Callable[[int], None] | None = None,
    ) -> None:
        """`hold`: segments from this number on may not change yet (rule 1).

        `wait_safe`: returns when other nodes have the records up to a TIME too (rule 6).
        """
        self._engine = engine
        self._stream = stream
        self._hold = hold
        self._wait_safe = wait_safe
        self._snapshot = replayed.snapshot
        self._as_of = replayed.overlap
        self._retention = Retention(engine.state)
        self._retention.snapshot_at = None if replayed.snapshot is None else replayed.as_of
        self._generations = Generations(engine.state, engine.log.written_time)
        self._disposal().leftovers()
        self._manifest = ManifestFile(stream)
        with contextlib.suppress(NoSpace):
            self._cover()
        self.status = UpkeepStatus()
        self._scrub = Scrub(stream)
        self.part = _PART
        """Rows of a snapshot visited under the lock at a time."""
        self.lock_wait = _LOCK_WAIT
        """Seconds to wait for readers."""
        if old_snapshots(stream, self._snapshot):
            self._lock_out(self._remove_old, wait=0)  # else the next cycle does it

    @property
    def snapshot(self) -> tuple[Snapshot, int] | None:
        """The newest snapshot, and the last TIME that it may hold."""
        snapshot, as_of = self._snapshot, self._as_of
        return None if snapshot is None else (snapshot, as_of)

    def log_bytes(self) -> int:
        """Bytes of the segments that recovery would read."""
        numbers = self._numbers(self._stream.segments())
        stream = self._stream
        return sum(file_size(stream.files, stream.segment_path(number)) for number in numbers)

    def begin_generation(self) -> bool:
        """Go on in a new segment if a short-lived queue begins a new generation."""
        engine = self._engine
        if not self._generations.begins(engine.clock.now(), engine.clock.monotonic()):
            return False
        if engine.log.position.offset <= HEADER_SIZE:
            return False
        engine.log.rotate()
        self.status.generations += 1
        return True

    def until_generation(self) -> float | None:
        """Seconds until a short-lived queue begins a new generation; None if there is none."""
        return self._generations.left(self._engine.clock.now())

    def _disposal(self) -> Disposal:
        return Disposal(self._stream, settings_of(self._engine.state))

    def clean(self) -> list[Cleaned]:
        """One cleaning cycle; returns the segments that changed."""
        self.begin_generation()
        if self._wait_safe is not None:
            return []
        cleaner = Cleaner(self._stream, self._engine.log.sync, self._disposal())
        try:
            cleaner.lock(self.lock_wait)
        except LockTimeout:
            self.status.skipped += 1
            return []
        try:
            cleaned = self._clean(cleaner)
        finally:
            cleaner.unlock()
        if self._snapshot is not None and self._retention.waiting > self._patience():
            self.take_snapshot()
        return cleaned

    def scrub(self) -> None:
        """Read some sealed segments again, looking for damage; see `Scrub`."""
        scrub, status = self._scrub, self.status
        scrub.go_on()
        status.scrub_passes, status.scrubbed_at = scrub.passes, scrub.passed_at
        status.scrub_faults = scrub.faults

    def take_snapshot(self) -> Snapshot:
        """Write an image of the state, then drop the segments below it and the image before."""
        first = parse_name(self._engine.log.rotate().name)
        assert first is not None
        as_of: list[int] = []
        snapshot = write_snapshot(self._stream, first, self._safe_parts(first, as_of))
        note_snapshot(self._engine, snapshot.path, first)
        self._as_of = as_of[-1]  # before the snapshot: who sees that must not see an older one
        self._snapshot = snapshot
        self._retention.snapshot_at = as_of[0]
        self.status.snapshots += 1
        with self._engine.lock:
            mark = Mark(self._engine.clock.now(), first, 0, SNAPSHOT_NOTE)
            self._engine.commit(mark)
        self._lock_out(self._remove_below, self.lock_wait)
        let_go(self._engine)
        return snapshot

    def _clean(self, cleaner: Cleaner) -> list[Cleaned]:
        stream, retention, now = self._stream, self._retention, self._engine.clock.now()
        self.status.cycles += 1
        self._remove_below()
        changeable = self._changeable()
        sealed = self._numbers(sealed_segments(stream, self._engine.log.sync))
        sealed = [number for number in sealed if number < changeable]
        for number in sealed:
            if retention.wants_survey(number, now):
                records = segment_records(stream, number)
                retention.survey(number, ((r.time, r.payload) for r in records))
        if not retention.plan(sealed, now):
            return []
        cleaned = cleaner.clean(retention.clean, before_replace=self._settle)
        note_cleaned(self._engine, [one.segment for one in cleaned])
        retention.finish()
        self.status.segments_cleaned += len(cleaned)
        self.status.bytes_freed += sum(c.bytes_before - c.bytes_after for c in cleaned)
        return cleaned

    def _patience(self) -> int:
        """Bytes of ends that may wait because an old snapshot still holds what has ended."""
        assert self._snapshot is not None
        return max(self._engine.log.options.segment_size, self._snapshot.size)

    def _settle(self) -> None:
        engine = self._engine
        with engine.lock:  # a batch is applied before it is logged; it ends under this lock
            self._log_ends()
        engine.log.sync()

    def _log_ends(self) -> None:
        """Say how jobs ended whose records are about to go."""
        endings = self._engine.state.endings
        ends = None if endings.logged else endings.command()
        if ends is not None:
            self._engine.note(ends)

    def parts(self, as_of: list[int]) -> Iterator[tuple[int, list[bytes]]]:
        """The state in parts, each taken under the lock; `as_of` collects their TIMEs."""
        engine = self._engine
        with engine.lock:
            rows = engine.state.rows.values()
            as_of.append(engine.log.written_time)
            general = [encode(c) for c in engine.state.general_commands()]
        yield as_of[0], general
        left = iter(rows)
        more = True
        while more:
            with engine.lock:
                as_of.append(engine.log.written_time)
                part, more = self._part(left)
            yield as_of[-1], part
        with engine.lock:  # last, for those that ended while the rows were visited
            as_of.append(engine.log.written_time)
            ends = engine.state.endings.command()
        if ends is not None:
            yield as_of[-1], [encode(ends)]
        engine.log.sync()

    def _safe_parts(self, first: int, as_of: list[int]) -> Iterator[tuple[int, list[bytes]]]:
        """The same; it ends when the snapshot may count (rule 6)."""
        yield from self.parts(as_of)
        if self._wait_safe is None:
            return
        self._wait_safe(as_of[-1])
        moment, hold = threading.Event(), self._hold
        for _ in range(round(ARCHIVE_WAIT / _MOMENT)):
            if hold is None or hold() >= first:
                return
            moment.wait(_MOMENT)
            self._wait_safe(as_of[-1])  # which says so when the journal is about to close
        raise ReadOnly("the archive lacks what the snapshot would let go")

    def _part(self, rows: Iterator[Row]) -> tuple[list[bytes], bool]:
        """Images of the next rows, and whether there may be more."""
        engine, part, size = self._engine, list[bytes](), 0
        for row in islice(rows, self.part):
            if row.policy.flags & PERSIST and engine.state.rows.get(row.id) is row:
                images = [encode(command) for command in image(row, engine.fetching.value(row))]
                part += images
                size += sum(map(len, images))
                if size >= _PART_BYTES:
                    return part, True
        return part, length_hint(rows) > 0

    def _lock_out(self, work: Callable[[], None], wait: float) -> None:
        """Do what readers must not meet, unless they cannot be locked out (rule 7)."""
        cleaner = Cleaner(self._stream, self._engine.log.sync)
        try:
            cleaner.lock(wait)
        except LockTimeout:
            self.status.skipped += 1
            return
        try:
            work()
        finally:
            cleaner.unlock()

    def _remove_old(self) -> None:
        remove_snapshots(self._stream, self._snapshot, self._disposal().remove)

    def _remove_below(self) -> None:
        """Remove other snapshots, and the segments that this one covers, oldest first."""
        self._remove_old()
        if self._snapshot is None:
            return
        self._cover()
        below = min(self._snapshot.first, self._changeable())
        covered = [n for n in sealed_segments(self._stream, self._engine.log.sync) if n < below]
        files, disposal = self._stream.files, self._disposal()
        for number in covered:
            path = self._stream.segment_path(number)
            try:
                size = file_size(self._stream.files, path)
                disposal.remove(path)
                files.sync_directory(self._stream.path)
            except OSError as error:
                raise SegmentError(path, f"cannot be removed: {error}") from error
            self.status.bytes_freed += size

    def _cover(self) -> None:
        """Say that the log below the snapshot may go: without it, what is left is not the log."""
        if self._snapshot is not None:
            self._manifest.cover(min(self._snapshot.first, self._changeable()))

    def _changeable(self) -> int:
        """Segments below this number may change or go (rule 1).

        A snapshot of a replicated journal has waited for that before it counted.
        """
        waited = self._wait_safe is not None
        return _ALL if self._hold is None or waited else self._hold()

    def _numbers(self, numbers: list[int]) -> list[int]:
        first = 0 if self._snapshot is None else self._snapshot.first
        return [number for number in numbers if number >= first]

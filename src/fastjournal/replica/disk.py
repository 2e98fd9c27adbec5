"""What a node keeps of a replicated journal: the log's own bytes, and two small files beside it.

    replica.meta   a line of JSON and its CRC-32C: promise, set version, where each epoch begins,
                   the run of the system that is known to have lost nothing, a cut under way
    commit.pos     two slots: up to which TIME a majority has the log

Rules:

1. `replica.meta` is written beside, synced, renamed, and its directory synced, before what it says
   is acted on. The start of an epoch is in it before the epoch's MARK is in the log.
2. A divergent tail is copied to `<segment>.diverged-<epoch>` and synced, then cut. That a cut is
   under way stands in `replica.meta`, so a crash in it is finished when the log is opened. First
   the cut, then the other history: bytes are never told as of an epoch that did not write them.
3. `commit.pos` may be old, never too new: it is not synced. Readers stop there.
4. Every byte is checked when the log is opened, for a log that was not may be chosen to lead. One
   that is damaged is set aside whole, and fetched again.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from typing import NamedTuple, Protocol

import google_crc32c

from fastjournal.errors import (
    CorruptRecord,
    SegmentError,
    VersionMismatch,
    short_write,
    write_failure,
)
from fastjournal.log.care.check import verify
from fastjournal.log.care.repair import cut
from fastjournal.log.files import FileHandle, Files, Identity
from fastjournal.log.manifest import MANIFEST
from fastjournal.log.manifest import first_time as first_time_of
from fastjournal.log.manifest import read as read_manifest
from fastjournal.log.record import MAX_PAYLOAD, BrokenRecord, Walk, encode
from fastjournal.log.segment import HEADER_SIZE, Position
from fastjournal.log.stream import DEFAULT_SEGMENT_SIZE, Stream
from fastjournal.log.write.appender import Appender
from fastjournal.log.write.segment_writer import write_whole
from fastjournal.log.write.synced_mark import SYNCED_MARK
from fastjournal.replica.rules import NO_PROMISE, EpochStart, Promise

__all__ = [
    "COMMIT_POS",
    "META",
    "Meta",
    "ReplicaLog",
    "Stretch",
    "Writer",
    "read_commit",
    "walk_records",
]

META = "replica.meta"
COMMIT_POS = "commit.pos"

_SLOT = Struct(">qI")
_CHUNK = 256 * 1024  # bytes shipped at once, unless one record is larger
_PLACES = 64  # readers whose place is remembered
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Meta:
    """What `replica.meta` says."""

    promise: Promise = NO_PROMISE
    version: int = 0
    """Of the set of members, as far as this node knows."""
    history: tuple[EpochStart, ...] = ()
    boot: bytes = b""
    """The run of the system in which this node was last known to have lost nothing."""
    sound: bool = False
    """False: something acknowledged may be missing, until it was fetched again."""
    cutting: tuple[int, int] | None = None
    """TIME and epoch of a cut under way."""

    def encode(self) -> bytes:
        """The whole file."""
        boot = self.boot.hex()
        fields = [self.promise, self.version, self.history, boot, self.sound, self.cutting]
        text = json.dumps(fields, separators=(",", ":")).encode()
        return b"%s\n%08x\n" % (text, google_crc32c.value(text))

    @classmethod
    def decode(cls, data: bytes, path: Path) -> Meta:
        """Read it; `SegmentError` if it is damaged: a promise must not be guessed."""
        text, _, crc = data.partition(b"\n")
        if crc != b"%08x\n" % google_crc32c.value(text):
            raise SegmentError(path, "is damaged")
        promise, version, history, boot, sound, cutting = json.loads(text)
        starts = tuple(EpochStart(*start) for start in history)
        doing = tuple(cutting) if cutting else None
        return cls(Promise(*promise), version, starts, bytes.fromhex(boot), sound, doing)


class Stretch(NamedTuple):
    """Raw records and what a walk over them found."""

    times: list[int]
    end: int
    """Where the last whole record ends."""
    broken: bool
    """Bytes that are no record stand behind that."""
    reason: str = ""


def walk_records(data: bytes, max_payload: int = MAX_PAYLOAD) -> Stretch:
    """The TIMEs of raw records, each with its CRC checked."""
    walk = Walk(data, 0, len(data), max_payload)
    times: list[int] = []
    while walk.at < walk.end:
        try:
            walk.step()
        except BrokenRecord as broken:
            return Stretch(times, walk.at, True, broken.reason)
        times.append(walk.time)
    return Stretch(times, walk.at, False)


class Writer(Protocol):
    """Who writes the log in our place."""

    def stored_time(self) -> int:
        """TIME of the newest record that is as safe as the policy says."""

    def written_time(self) -> int:
        """TIME of the newest record that can be read."""


class _Place(NamedTuple):
    position: Position
    file: Identity


class ReplicaLog:
    """One node's copy of a journal's log; nobody else writes there while this is open."""

    def __init__(
        self, stream: Stream, *, sync: str = "always", segment_size: int = DEFAULT_SEGMENT_SIZE
    ) -> None:
        """Open it: finish a cut under way, recover the tail.

        `damage` says what was wrong if the log had to be set aside.
        """
        self.stream = stream
        self.sync = sync
        self.damage = ""
        self._segment_size = segment_size
        self._places: dict[int, _Place] = {}
        self._commit: FileHandle | None = None
        self._slot = 0
        self._writer: Writer | None = None
        self._lent_at = 0
        self._appender: Appender | None = None
        stream.create()
        self.known = stream.files.exists(stream.path / META)
        """Whether this node remembers anything: one that does not has forgotten its promises."""
        self.meta = Meta()
        try:
            if self.known:
                content = _read(stream.files, stream.path / META)
                self.meta = Meta.decode(content, stream.path / META)
            if self.meta.cutting is not None:
                self._cut(*self.meta.cutting)
                self.write_meta(replace(self.meta, cutting=None))
            self._appender = self._open()
        except (SegmentError, VersionMismatch) as error:  # rule 4
            _log.error("%s: damaged, set aside to be fetched again: %s", stream.path, error)
            self.damage = str(error)
            self._set_aside()
            if self.meta == Meta():  # a promise that cannot be read is a promise forgotten
                self.known = False
            else:
                self.write_meta(replace(self.meta, history=(), sound=False, cutting=None))
            self._appender = self._open()
        self.commit_time = min(read_commit(stream.files, stream.path), self.last_time)

    @property
    def last_time(self) -> int:
        """TIME of the newest record that is as safe as the policy says; 0 in an empty log."""
        if self._writer is not None:
            self._lent_at = self._writer.stored_time()
        return self._lent_at if self._appender is None else self._appender.last_time

    @property
    def written_time(self) -> int:
        """TIME of the newest record that can be shipped: others may be faster than our disk."""
        return self.last_time if self._writer is None else self._writer.written_time()

    def lend(self) -> None:
        """Let go of the log, for a journal to be opened on it: only a primary may do so."""
        self._lent_at = self.last_time
        self._let_go()

    def lend_to(self, writer: Writer) -> None:
        """The journal is open: this is how far it has written."""
        self._writer = writer

    @property
    def is_lent(self) -> bool:
        """Whether a journal has the log: nothing is cut, and no bytes of others are taken."""
        return self._appender is None

    def take_back(self) -> None:
        """The journal is closed: go on from what it has left."""
        self._writer = None
        self._appender = self._open()

    @property
    def _held(self) -> Appender:
        if self._appender is None:
            raise SegmentError(self.stream.path, "is closed")
        return self._appender

    def boot_id(self) -> bytes:
        """The run of the system right now."""
        return self.stream.files.boot_id()

    def write_meta(self, meta: Meta) -> None:
        """Make this what is remembered, durably, then act on it (rule 1)."""
        files, path = self.stream.files, self.stream.path / META
        work = path.with_name(META + ".new")
        try:
            if files.exists(work):
                files.remove(work)
            handle = files.create(work)
            try:
                write_whole(handle, meta.encode())
                handle.sync()
            finally:
                handle.close()
            files.rename(work, path)
            files.sync_directory(self.stream.path)
        except OSError as error:
            raise write_failure(error, path) from error
        self.meta, self.known = meta, True

    def set_commit(self, time: int) -> None:
        """Note up to where a majority has the log (rule 3)."""
        if time <= self.commit_time:
            return
        self.commit_time = time
        files, path = self.stream.files, self.stream.path / COMMIT_POS
        try:
            if self._commit is None:
                self._commit = files.open_in_place(path)
            body = time.to_bytes(8, "big", signed=True)
            data = _SLOT.pack(time, google_crc32c.value(body))
            written = self._commit.write_at(data, self._slot * _SLOT.size)
            if written != len(data):
                raise short_write(written, len(data))
        except OSError as error:
            _log.warning("%s: not written, readers see less: %s", path, error)
        self._slot = 1 - self._slot

    def append(self, payload: bytes, time: int) -> int:
        """Add a record of our own; returns its TIME, which is `time` or behind the newest one."""
        time = max(time, self.last_time + 1)
        self._held.append_encoded(encode(time, payload, self.stream.zone), time, time)
        return time

    def append_raw(self, data: bytes, times: Sequence[int]) -> None:
        """Add whole, checked records of another node's log."""
        self._held.append_encoded(data, times[0], times[-1])

    def begin_epoch(self, epoch: int, payload: bytes, time: int) -> int:
        """Write an epoch's MARK, its start first into `replica.meta`; returns the MARK's TIME."""
        after = self.last_time
        time = max(time, after + 1)
        kept = tuple(start for start in self.meta.history if start.first <= after)
        self.write_meta(replace(self.meta, history=(*kept, EpochStart(epoch, time, after))))
        return self.append(payload, time)

    def take_history(self, history: Sequence[EpochStart], keep: int, epoch: int) -> None:
        """Cut off what lies behind `keep`, then make this history ours (rule 2)."""
        if keep < self.last_time:
            self.write_meta(replace(self.meta, cutting=(keep, epoch)))
            self._let_go()
            self._cut(keep, epoch)
            self._appender = self._open()
        if self.meta.cutting is not None or self.meta.history != tuple(history):
            self.write_meta(replace(self.meta, history=tuple(history), cutting=None))

    def can_serve(self, after: int) -> bool:
        """Whether all that ever came behind that TIME is still here: nothing was cleaned away."""
        manifest = read_manifest(self.stream.files, self.stream.path)
        return manifest is None or manifest.dropped_to <= after

    def has_snapshot(self) -> bool:
        """Whether the log begins behind a snapshot: its records alone are not the journal."""
        manifest = read_manifest(self.stream.files, self.stream.path)
        return manifest is not None and manifest.floor > 0

    def read_after(self, after: int, limit: int = _CHUNK) -> bytes:
        """The raw records behind a TIME, as many as fit; at least one, if there is one."""
        if after >= self.written_time:
            return b""
        place = self._places.get(after)
        at = place.position if place and place.file == self._file(place.position) else None
        numbers = self.stream.segments()
        at = at or self._behind(after, numbers)
        for number in [number for number in numbers if number >= at.segment]:
            offset = at.offset if number == at.segment else HEADER_SIZE
            data = self._records_at(number, offset, limit)
            if data:
                last = walk_records(data, self.stream.max_payload).times[-1]
                found = Position(number, offset + len(data))
                if len(self._places) >= _PLACES:
                    self._places.pop(next(iter(self._places)))
                self._places[last] = _Place(found, self._file(found))
                return data
        return b""

    def records(self) -> bytes:
        """All raw records, one behind the other."""
        parts = [
            self._records_at(number, HEADER_SIZE, 1 << 62) for number in self.stream.segments()
        ]
        return b"".join(parts)

    def close(self) -> None:
        """Sync what is written and let go of the log."""
        commit, self._commit = self._commit, None
        if commit is not None:
            with contextlib.suppress(OSError):
                commit.close()
        self._let_go()

    def _let_go(self) -> None:
        appender, self._appender = self._appender, None
        self._places.clear()
        if appender is not None:
            appender.unlock()

    def _open(self) -> Appender:
        appender = self.stream.open_appender(segment_size=self._segment_size, sync=self.sync)
        appender.lock(1.0)
        try:
            for segment in verify(self.stream):
                for fault in segment.faults:
                    raise CorruptRecord(fault.path, fault.offset, fault.reason)
        except BaseException:
            appender.unlock()
            raise
        return appender

    def _cut(self, keep: int, epoch: int) -> None:
        numbers = self.stream.segments()
        if numbers:
            cut(self.stream, self._behind(keep, numbers), aside=f"diverged-{epoch}")
        files, path = self.stream.files, self.stream.path / COMMIT_POS
        if read_commit(files, self.stream.path) > keep:  # by an operator's word only
            files.remove(path)
            self.commit_time = keep

    def _behind(self, time: int, numbers: list[int]) -> Position:
        """Just behind the newest record whose TIME is not above this one."""
        found = Position(numbers[0], HEADER_SIZE)
        for number in numbers:
            head = self._read(number, HEADER_SIZE, 64)
            first = first_time_of(bytes(HEADER_SIZE) + head)
            if first > time:
                break
            if first:
                found = Position(number, HEADER_SIZE)
        data = self._records_at(found.segment, HEADER_SIZE, 1 << 62)
        walk = Walk(data, 0, len(data), self.stream.max_payload)
        end = 0
        while walk.at < walk.end:
            walk.step()
            if walk.time > time:
                break
            end = walk.at
        return Position(found.segment, HEADER_SIZE + end)

    def _records_at(self, number: int, offset: int, limit: int) -> bytes:
        """Whole records from there on; not all of them if they are more than `limit` bytes."""
        while True:
            data = self._read(number, offset, limit)
            found = walk_records(data, self.stream.max_payload)
            if len(data) < limit and any(data[found.end :]):  # what is reserved ahead is zeros
                path = self.stream.segment_path(number)
                raise CorruptRecord(path, offset + found.end, found.reason)
            if found.end or len(data) < limit:
                return data[: found.end]
            limit *= 4  # one large record

    def _read(self, number: int, offset: int, size: int) -> bytes:
        path = self.stream.segment_path(number)
        try:
            handle = self.stream.files.open_read(path)
            try:
                return handle.read(offset, min(size, max(0, handle.size() - offset)))
            finally:
                handle.close()
        except OSError as error:
            raise SegmentError(path, f"cannot be read: {error}") from error

    def _file(self, at: Position) -> Identity:
        return self.stream.files.identity(self.stream.segment_path(at.segment))

    def _set_aside(self) -> None:
        """Keep every file of a damaged log under another name, newest first, and begin anew."""
        files, now = self.stream.files, self.stream.clock.now()
        lock = self.stream.lock_appender(1.0)
        try:
            for number in reversed(self.stream.segments()):
                path = self.stream.segment_path(number)
                files.rename(path, path.with_name(f"{path.name}.damaged-{now}"))
            for name in (MANIFEST, SYNCED_MARK, COMMIT_POS):
                if files.exists(self.stream.path / name):
                    files.remove(self.stream.path / name)
            files.sync_directory(self.stream.path)
        except OSError as error:
            raise write_failure(error, self.stream.path) from error
        finally:
            lock.release()


def read_commit(files: Files, directory: Path) -> int:
    """Up to which TIME a majority is known to have the log; 0: nothing is known."""
    path = directory / COMMIT_POS
    if not files.exists(path):
        return 0
    content = _read(files, path)
    times = [0]
    for at in range(0, len(content) - _SLOT.size + 1, _SLOT.size):
        time, crc = _SLOT.unpack_from(content, at)
        if crc == google_crc32c.value(content[at : at + 8]):
            times.append(time)
    return max(times)


def _read(files: Files, path: Path) -> bytes:
    try:
        handle = files.open_read(path)
        try:
            return handle.read(0, handle.size())
        finally:
            handle.close()
    except OSError as error:
        raise SegmentError(path, f"cannot be read: {error}") from error

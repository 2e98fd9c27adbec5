"""What a node keeps of a replicated journal: the log's own bytes, and two small files beside it.

    replica.meta   a line of JSON and its CRC-32C: promise, set version, where each epoch begins,
                   the run of the system that is known to have lost nothing, a cut under way
    commit.pos     two slots: up to which TIME a majority has the log
    incoming.snapshot   a snapshot of another node, while it is fetched

Rules:

1. `replica.meta` is written beside, synced, renamed, and its directory synced, before what it says
   is acted on. The start of an epoch is in it before the epoch's MARK is in the log.
2. A divergent tail is copied to `<segment>.diverged-<epoch>` and synced, then cut. That a cut is
   under way stands in `replica.meta`, so a crash in it is finished when the log is opened. First
   the cut, then the other history: bytes are never told as of an epoch that did not write them.
3. `commit.pos` may be old, never too new: it is not synced, and written now and then. Readers stop
   there.
4. Every byte is checked when the log is opened, for a log that was not may be chosen to lead. One
   that is damaged is set aside whole, and fetched again.
5. A snapshot stands for all records up to `base`, and only for what a majority has. Its file is
   opaque here: which records it stands for is told by the boundary of segments that it is named by.
   Numbers of segments differ between nodes, TIMEs do not: so a node leaves its segment where its
   primary has, and nowhere else, and gives a snapshot of another node the number of its own segment
   behind `base`.
6. That a snapshot is being installed stands in `replica.meta` first: a crash in it is finished, or
   forgotten, when the log is opened. No record goes before the snapshot counts.
7. What has arrived together is written piece by piece and synced once, by `flush`: nothing is told
   of it before that.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Sequence
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
from fastjournal.log.commit_mark import (
    COMMIT_POS,
    COMMIT_SLOT,
    REPLICA_META,
    encode_commit,
    read_commit,
)
from fastjournal.log.files import FileHandle, Files, Identity, make_file, replace_file, write_whole
from fastjournal.log.manifest import MANIFEST, Manifest, ManifestFile, Sealed
from fastjournal.log.manifest import first_time as first_time_of
from fastjournal.log.manifest import read as read_manifest
from fastjournal.log.record import MAX_PAYLOAD, BrokenRecord, Walk, encode
from fastjournal.log.segment import HEADER_SIZE, Position
from fastjournal.log.segment_directory import DEFAULT_SEGMENT_SIZE, MAX_SEGMENT_SIZE
from fastjournal.log.stream import Stream
from fastjournal.log.synced_mark import SYNCED_MARK
from fastjournal.log.write.appender import Appender
from fastjournal.replica.recent import Chunk, RecentBytes
from fastjournal.replica.rules import NO_PROMISE, EpochStart, Promise

__all__ = [
    "PIECE",
    "Meta",
    "ReplicaLog",
    "SnapshotFacts",
    "Stretch",
    "Writer",
    "walk_records",
]

PIECE = 1024 * 1024
"""Bytes whose CRC is computed at once."""
_INCOMING = "incoming.snapshot"
_CHECKPOINT = Struct(">8xQQII")  # header, records, size, CRC of the snapshot, CRC of this
_CHUNK = 256 * 1024  # bytes shipped at once, unless one record is larger
_NEAR = 16  # chunks that are counted
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
    installing: tuple[int, int] | None = None
    """Number and base of a snapshot that is being installed."""

    def encode(self) -> bytes:
        """The whole file."""
        boot = self.boot.hex()
        fields = [self.promise, self.version, self.history, boot, self.sound, self.cutting]
        if self.installing is not None:
            fields.append(self.installing)
        text = json.dumps(fields, separators=(",", ":")).encode()
        return b"%s\n%08x\n" % (text, google_crc32c.value(text))

    @classmethod
    def decode(cls, data: bytes, path: Path) -> Meta:
        """Read it; `SegmentError` if it is damaged: a promise must not be guessed."""
        text, _, crc = data.partition(b"\n")
        if crc != b"%08x\n" % google_crc32c.value(text):
            raise SegmentError(path, "is damaged")
        promise, version, history, boot, sound, cutting, *more = json.loads(text)
        starts = tuple(EpochStart(*start) for start in history)
        doing = tuple(cutting) if cutting else None
        installing = tuple(more[0]) if more else None
        return cls(
            Promise(*promise), version, starts, bytes.fromhex(boot), sound, doing, installing
        )


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


class SnapshotFacts(NamedTuple):
    """The snapshot that a log begins behind."""

    base: int
    """It stands for all records up to this TIME."""
    number: int
    size: int
    crc: int
    checkpoint: bytes
    """The file that makes it count."""


class Writer(Protocol):
    """Who writes the log in our place."""

    def stored_time(self) -> int:
        """TIME of the newest record that is as safe as the policy says."""

    def written_time(self) -> int:
        """TIME of the newest record that can be read."""

    def tell_writes(self, on_write: Callable[[int, bytes, int, bool], object]) -> None:
        """Tell every write from now on, as `LogWriter.tell_writes` does."""


class _Place(NamedTuple):
    position: Position
    file: Identity


class ReplicaLog:
    """One node's copy of a journal's log; nobody else writes there while this is open."""

    def __init__(
        self,
        stream: Stream,
        *,
        sync: str = "always",
        segment_size: int = DEFAULT_SEGMENT_SIZE,
        part_size: int = _CHUNK,
    ) -> None:
        """Open it: finish a cut or an install under way, recover the tail.

        `damage` says what was wrong if the log had to be set aside. `part_size`: bytes of a
        snapshot that are shipped at once.
        """
        self.stream = stream
        self.sync = sync
        self.damage = ""
        self._segment_size = segment_size
        self._part_size = part_size
        self._places: dict[int, _Place] = {}
        self._commit: FileHandle | None = None
        self._slot = 0
        self._noted = 0
        """What `commit.pos` says."""
        self.commit_time = 0
        """Up to which TIME a majority has the log, as far as this node knows."""
        self._writer: Writer | None = None
        self._recent: RecentBytes | None = None
        self._lent_at = 0
        self._appender: Appender | None = None
        self._unsafe = False
        self._incoming: FileHandle | None = None
        self._facts: tuple[int, SnapshotFacts] | None = None
        self.fetched = (0, 0)
        """Size and CRC of what was fetched of another node's snapshot."""
        self.rewritten = 0
        """How often records that were here have gone: who reads along begins anew."""
        self._based_on: Manifest | None = None
        self._based_at = 0
        self._known = Manifest()
        self._read_at: tuple[Identity, int] = (None, 0)
        self._read_for: tuple[Appender, int] | None = None
        stream.create()
        self.known = stream.files.exists(stream.path / REPLICA_META)
        """Whether this node remembers anything: one that does not has forgotten its promises."""
        self.meta = Meta()
        try:
            if self.known:
                content = _read(stream.files, stream.path / REPLICA_META)
                self.meta = Meta.decode(content, stream.path / REPLICA_META)
            if self.meta.cutting is not None:
                self._cut(*self.meta.cutting)
                self.write_meta(replace(self.meta, cutting=None))
            if self.meta.installing is not None:
                self._finish_install(*self.meta.installing)
            self._remove_covered()
            self._check_snapshot()
            self._appender = self._open()
        except (SegmentError, VersionMismatch) as error:  # rule 4
            _log.error("%s: damaged, set aside to be fetched again: %s", stream.path, error)
            self.damage = str(error)
            self._set_aside()
            if self.meta == Meta():  # a promise that cannot be read is a promise forgotten
                self.known = False
            else:
                self.write_meta(
                    replace(self.meta, history=(), sound=False, cutting=None, installing=None)
                )
            self._appender = self._open()
        self._noted = read_commit(stream.files, stream.path)
        self.commit_time = min(self._noted, self.last_time)

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
        self._recent = RecentBytes()
        writer.tell_writes(self._recent.add)

    @property
    def is_lent(self) -> bool:
        """Whether a journal has the log: nothing is cut, and no bytes of others are taken."""
        return self._appender is None

    def take_back(self) -> None:
        """The journal is closed: go on from what it has left."""
        self._writer = self._recent = None
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
        path = self.stream.path / REPLICA_META
        try:
            replace_file(self.stream.files, path, [meta.encode()])
        except OSError as error:
            raise write_failure(error, path) from error
        self.meta, self.known = meta, True

    def set_commit(self, time: int) -> None:
        """A majority has the log up to there."""
        if time > self.commit_time:
            self.commit_time = time

    def note_commit(self) -> None:
        """Tell readers up to where a majority has the log, if that has moved (rule 3)."""
        time = self.commit_time
        if time <= self._noted:
            return
        self._noted = time
        try:
            if self._commit is None:
                self._commit = self.stream.files.open_in_place(self.stream.path / COMMIT_POS)
            data = encode_commit(time)
            written = self._commit.write_at(data, self._slot * COMMIT_SLOT)
            if written != len(data):
                raise short_write(written, len(data))
        except OSError as error:
            path = self.stream.path / COMMIT_POS
            _log.warning("%s: not written, readers see less: %s", path, error)
        self._slot = 1 - self._slot

    def append(self, payload: bytes, time: int) -> int:
        """Add a record of our own; returns its TIME, which is `time` or behind the newest one.

        It is as safe as the policy says once `flush` was called.
        """
        time = max(time, self.last_time + 1)
        if self._held.position.offset >= self._segment_size:
            self._held.rotate()
        self._held.append_encoded(encode(time, payload, self.stream.zone), time, time)
        self._unsafe = True
        return time

    def append_raw(self, data: bytes, times: Sequence[int], begins: bool = False) -> None:
        """Add whole, checked records of another node's log; `begins`: they begin a segment.

        They are as safe as the policy says once `flush` was called.
        """
        if begins:
            self.leave_segment()
        self._held.append_encoded(data, times[0], times[-1])
        self._unsafe = True

    def flush(self) -> None:
        """Make all that was added as safe as the policy says (rule 7)."""
        if self._unsafe and self.sync == "always":
            self._held.sync()
        self._unsafe = False

    def leave_segment(self) -> int:
        """Go on in a new segment, unless nothing is in this one; returns its number."""
        if self._held.position.offset > HEADER_SIZE:
            self._held.rotate()
        return self._held.position.segment

    def begin_epoch(self, epoch: int, payload: bytes, time: int) -> int:
        """Write an epoch's MARK, its start first into `replica.meta`; returns the MARK's TIME."""
        after = self.last_time
        time = max(time, after + 1)
        kept = tuple(start for start in self.meta.history if start.first <= after)
        self.write_meta(replace(self.meta, history=(*kept, EpochStart(epoch, time, after))))
        self.append(payload, time)
        self.flush()
        return time

    def take_history(self, history: Sequence[EpochStart], keep: int, epoch: int) -> None:
        """Cut off what lies behind `keep`, then make this history ours (rule 2)."""
        if keep < self.last_time:
            self.write_meta(replace(self.meta, cutting=(keep, epoch)))
            self._let_go()
            self._cut(keep, epoch)
            self._appender = self._open()
        if self.meta.cutting is not None or self.meta.history != tuple(history):
            self.write_meta(replace(self.meta, history=tuple(history), cutting=None))

    def begin_anew(self, reason: str) -> None:
        """Forget every record, kept aside: what this log tells is not the journal's history."""
        _log.error("%s: set aside to be fetched again: %s", self.stream.path, reason)
        self.damage = reason
        self._let_go()
        self.drop_parts()
        self._set_aside()
        self.write_meta(replace(self.meta, history=(), sound=False, cutting=None, installing=None))
        self.commit_time = 0
        self._appender = self._open()

    @property
    def base(self) -> int:
        """Up to which TIME a snapshot stands for the log; 0: there is none."""
        return self._base(self._manifest())

    @property
    def dropped_to(self) -> int:
        """Records up to this TIME may be missing here: they were dropped."""
        return self._manifest().dropped_to

    def sealed(self) -> list[Sealed]:
        """The segments that are not written to any more, oldest first."""
        return [one for one in self._manifest().sealed.values() if one.first]

    def extend_crc(self, one: Sealed, at: int, crc: int) -> tuple[int, int]:
        """CRC-32C of what is in the file of a segment now, some bytes further; how far, and what.

        It is whole when it goes no further. A byte more than the segment has would be told too.
        """
        data = self._read(one.number, at, min(PIECE, one.size + 1 - at))
        return at + len(data), google_crc32c.extend(crc, data)

    def snapshot(self) -> SnapshotFacts | None:
        """The snapshot that the log begins behind; None: it begins at its beginning."""
        manifest = self._manifest()
        if not manifest.floor:
            return None
        if self._facts is None or self._facts[0] != manifest.floor:
            checkpoint = self._checkpoint(manifest.floor)
            if not checkpoint:
                path = self._beside(manifest.floor, "checkpoint")
                raise SegmentError(path, "is missing or damaged")
            _, size, crc, _ = _CHECKPOINT.unpack(checkpoint)
            facts = SnapshotFacts(0, manifest.floor, size, crc, checkpoint)
            self._facts = manifest.floor, facts
        return self._facts[1]._replace(base=self._base(manifest))

    def read_snapshot(self, facts: SnapshotFacts, at: int) -> bytes:
        """A part of its file."""
        path, size = self._beside(facts.number, "snapshot"), min(self._part_size, facts.size - at)
        return _read_part(self.stream.files, path, at, size)

    def take_part(self, at: int, data: bytes) -> None:
        """Keep a part of another node's snapshot; they come in order, the first one is at 0."""
        files, path = self.stream.files, self.stream.path / _INCOMING
        try:
            if at == 0:
                self.drop_parts()
                self._incoming = files.create(path)
            assert self._incoming is not None
            write_whole(self._incoming, data)
            size, crc = self.fetched
            self.fetched = size + len(data), google_crc32c.extend(crc, data)
        except OSError as error:
            raise write_failure(error, path) from error

    def drop_parts(self) -> None:
        """Forget what was fetched of a snapshot."""
        incoming, self._incoming = self._incoming, None
        self.fetched = (0, 0)
        if incoming is not None:
            incoming.close()
        path = self.stream.path / _INCOMING
        if self.stream.files.exists(path):
            self.stream.files.remove(path)

    def has_boundary(self, base: int) -> bool:
        """Whether a snapshot of that base can be told from our records: none, or a segment ends."""
        return base >= self.last_time or self._number_behind(base) > 0

    def install(self, base: int, checkpoint: bytes) -> None:
        """Let the fetched snapshot stand for all records up to `base` (rule 6)."""
        assert self._incoming is not None
        incoming, self._incoming = self._incoming, None
        self.fetched = (0, 0)
        files, path = self.stream.files, self.stream.path / _INCOMING
        try:
            incoming.sync()
            incoming.close()
            number = self._number_behind(base)
            if not number:  # nothing of ours lies behind it
                number = self.leave_segment()
            self.write_meta(replace(self.meta, installing=(number, base)))
            files.rename(path, self._beside(number, "snapshot"))
            files.sync_directory(self.stream.path)
            counts = self._beside(number, "checkpoint")
            if files.exists(counts):
                files.remove(counts)
            make_file(files, counts, [checkpoint])
            files.sync_directory(self.stream.path)
        except OSError as error:
            raise write_failure(error, path) from error
        self._let_go()
        self._finish_install(number, base)
        self._remove_covered()
        self._appender = self._open()
        self.set_commit(base)  # it tells of nothing else

    def _finish_install(self, number: int, base: int) -> None:
        """The checkpoint says whether the snapshot counts; then the log begins behind it."""
        files = self.stream.files
        if self._checkpoint(number):
            known = self._manifest()
            sealed = {n: one for n, one in known.sealed.items() if n >= number}
            ManifestFile(self.stream).replace(
                replace(
                    known,
                    sealed=sealed,
                    used=max(known.used, number - 1),
                    floor=number,
                    dropped_to=max(known.dropped_to, base),
                    pending=None,
                )
            )
        else:
            for kind in ("checkpoint", "snapshot"):
                if files.exists(self._beside(number, kind)):
                    files.remove(self._beside(number, kind))
        self.write_meta(replace(self.meta, installing=None))

    def _remove_covered(self) -> None:
        """What the snapshot stands for goes, oldest first."""
        files, floor = self.stream.files, self._manifest().floor
        names = [
            name
            for name in files.names(self.stream.path)
            if name.endswith((".log", ".snapshot", ".checkpoint"))
            and name.split(".")[0].isdecimal()
            and int(name.split(".")[0]) < floor
        ]
        try:
            for name in sorted(names):
                files.remove(self.stream.path / name)
            if names:
                files.sync_directory(self.stream.path)
        except OSError as error:
            raise SegmentError(self.stream.path, f"cannot be removed: {error}") from error

    def _check_snapshot(self) -> None:
        """Every byte of it (rule 4)."""
        facts = self.snapshot()
        if facts is None:
            return
        path, crc = self._beside(facts.number, "snapshot"), 0
        for at in range(0, facts.size, self._part_size):
            crc = google_crc32c.extend(crc, self.read_snapshot(facts, at))
        if crc != facts.crc:
            raise SegmentError(path, "is damaged")

    def _checkpoint(self, number: int) -> bytes:
        """The file that makes a snapshot count; empty: there is none that is whole."""
        path = self._beside(number, "checkpoint")
        content = _read(self.stream.files, path) if self.stream.files.exists(path) else b""
        if len(content) != _CHECKPOINT.size:
            return b""
        crc = google_crc32c.value(content[:-4])
        return content if crc == int.from_bytes(content[-4:], "big") else b""

    def _number_behind(self, base: int) -> int:
        """The segment that begins with the first record behind a TIME; 0: there is none."""
        for number in self._numbers():
            first = first_time_of(bytes(HEADER_SIZE) + self._read(number, HEADER_SIZE, 64))
            if first > base:
                below = [
                    one.last for one in self._manifest().sealed.values() if one.number < number
                ]
                known = all(n in self._manifest().sealed for n in self._numbers() if n < number)
                return number if known and max([*below, 0]) <= base else 0
        return 0

    def _base(self, manifest: Manifest) -> int:
        if not manifest.floor:
            return 0
        if manifest is not self._based_on:
            # A log that was cleaned before it was replicated has dropped later ones too.
            sealed = [one.first for one in manifest.sealed.values() if one.first]
            self._based_at = min([manifest.dropped_to, *(first - 1 for first in sealed)])
            self._based_on = manifest
        return self._based_at

    def _manifest(self) -> Manifest:
        """What the manifest says now; read again only when it is another file, or longer."""
        held = self._appender
        if held is not None and self._read_for == (held, held.position.segment):
            return self._known  # nobody else changes it
        self._read_for = None if held is None else (held, held.position.segment)
        files, path = self.stream.files, self.stream.path / MANIFEST
        if not files.exists(path):
            self._known, self._read_at = Manifest(), (None, 0)
            return self._known
        handle = files.open_read(path)
        try:
            identity, size = handle.identity(), handle.size()
        finally:
            handle.close()
        if identity is None or self._read_at != (identity, size):
            self._known = read_manifest(files, self.stream.path) or Manifest()
            self._read_at = identity, size
        return self._known

    def _numbers(self) -> list[int]:
        """The segments that count."""
        floor = self._manifest().floor
        return [number for number in self.stream.segments() if number >= floor]

    def _beside(self, number: int, kind: str) -> Path:
        return self.stream.path / f"{number:09d}.{kind}"

    def read_recent(self, after: int, limit: int = _CHUNK) -> Chunk | None:
        """What was just written behind a TIME, from memory; None: read it from the segments."""
        return None if self._recent is None else self._recent.read_after(after, limit)

    def read_after(self, after: int, limit: int = _CHUNK) -> Chunk:
        """The raw records behind a TIME, as many as fit; at least one, if there is one."""
        if after >= self.written_time:
            return Chunk(b"", False, after)
        place = self._places.get(after)
        at = place.position if place and place.file == self._file(place.position) else None
        if at is not None:  # where the last one ended: no need to look at the directory
            chunk = self._chunk(at.segment, at.offset, limit)
            if chunk.data:
                return chunk
        numbers = self.stream.segments()
        at = at or self._behind(after, numbers)
        for number in [number for number in numbers if number >= at.segment]:
            offset = at.offset if number == at.segment else HEADER_SIZE
            chunk = self._chunk(number, offset, limit)
            if chunk.data:
                return chunk
        return Chunk(b"", False, after)

    def _chunk(self, number: int, offset: int, limit: int) -> Chunk:
        """Whole records of a segment; remembers where they end."""
        data, times = self._records_at(number, offset, limit)
        if data:
            found = Position(number, offset + len(data))
            if len(self._places) >= _PLACES:
                self._places.pop(next(iter(self._places)))
            self._places[times[-1]] = _Place(found, self._file(found))
        return Chunk(data, offset == HEADER_SIZE, times[-1] if times else 0)

    def distance(self, after: int) -> tuple[int, int]:
        """How many records lie behind a TIME, and their bytes; far away both are estimated."""
        records = size = 0
        for _ in range(_NEAR):
            data = self.read_after(after).data
            if not data:
                return records, size
            times = walk_records(data, self.stream.max_payload).times
            records, size, after = records + len(times), size + len(data), times[-1]
        far = sum(one.size for one in self.sealed() if one.first > after)
        return records + records * far // size, size + far

    def records(self) -> bytes:
        """All raw records, one behind the other."""
        parts = [
            self._records_at(number, HEADER_SIZE, 1 << 62)[0] for number in self.stream.segments()
        ]
        return b"".join(parts)

    def close(self) -> None:
        """Sync what is written and let go of the log."""
        self.note_commit()
        self._close_commit()
        if self._incoming is not None:
            self._incoming.close()
        self._let_go()

    def _close_commit(self) -> None:
        commit, self._commit = self._commit, None
        if commit is not None:
            with contextlib.suppress(OSError):
                commit.close()

    def _let_go(self) -> None:
        appender, self._appender = self._appender, None
        self._unsafe = False  # the appender syncs at its end
        self._places.clear()
        if appender is not None:
            appender.unlock()

    def _open(self) -> Appender:
        # `flush` syncs under `always`. Where a segment is left is the primary's to say, also if our
        # size is another one.
        always = self.sync == "always"
        appender = self.stream.open_appender(
            segment_size=MAX_SEGMENT_SIZE, sync="os" if always else self.sync, preallocate=always
        )
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
        self.rewritten += 1
        numbers = self.stream.segments()
        if numbers:
            cut(self.stream, self._behind(keep, numbers), aside=f"diverged-{epoch}")
        files, path = self.stream.files, self.stream.path / COMMIT_POS
        if read_commit(files, self.stream.path) > keep:  # by an operator's word only
            self._close_commit()
            files.remove(path)
            self._noted = 0
        self.commit_time = min(self.commit_time, keep)

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
        data, _ = self._records_at(found.segment, HEADER_SIZE, 1 << 62)
        walk = Walk(data, 0, len(data), self.stream.max_payload)
        end = 0
        while walk.at < walk.end:
            walk.step()
            if walk.time > time:
                break
            end = walk.at
        return Position(found.segment, HEADER_SIZE + end)

    def _records_at(self, number: int, offset: int, limit: int) -> tuple[bytes, list[int]]:
        """Whole records from there on, and their TIMEs; some, if they exceed `limit` bytes."""
        while True:
            data = self._read(number, offset, limit)
            found = walk_records(data, self.stream.max_payload)
            rest = len(data) - found.end
            # What is reserved ahead is zeros; a comparison sees that at once.
            if len(data) < limit and data[found.end :] != bytes(rest):
                path = self.stream.segment_path(number)
                raise CorruptRecord(path, offset + found.end, found.reason)
            if found.end or len(data) < limit:
                return data[: found.end], found.times
            limit *= 4  # one large record

    def _read(self, number: int, offset: int, size: int) -> bytes:
        return _read_part(self.stream.files, self.stream.segment_path(number), offset, size)

    def _file(self, at: Position) -> Identity:
        return self.stream.files.identity(self.stream.segment_path(at.segment))

    def _set_aside(self) -> None:
        """Keep every file of a damaged log under another name, newest first, and begin anew."""
        self.rewritten += 1
        files, now = self.stream.files, self.stream.clock.now()
        self._close_commit()
        self._noted = 0
        self._facts = None
        lock = self.stream.lock_appender(1.0)
        try:
            for number in reversed(self.stream.segments()):
                path = self.stream.segment_path(number)
                files.rename(path, path.with_name(f"{path.name}.damaged-{now}"))
            for name in files.names(self.stream.path):
                if name.endswith((".snapshot", ".checkpoint")):
                    path = self.stream.path / name
                    files.rename(path, path.with_name(f"{name}.damaged-{now}"))
            for name in (MANIFEST, SYNCED_MARK, COMMIT_POS):
                if files.exists(self.stream.path / name):
                    files.remove(self.stream.path / name)
            files.sync_directory(self.stream.path)
        except OSError as error:
            raise write_failure(error, self.stream.path) from error
        finally:
            lock.release()


def _read(files: Files, path: Path) -> bytes:
    return _read_part(files, path, 0, 1 << 62)


def _read_part(files: Files, path: Path, offset: int, size: int) -> bytes:
    try:
        handle = files.open_read(path)
        try:
            return handle.read(offset, max(0, min(size, handle.size() - offset)))
        finally:
            handle.close()
    except OSError as error:
        raise SegmentError(path, f"cannot be read: {error}") from error

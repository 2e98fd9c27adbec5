"""Get back what is left of a damaged log. Offline, for operators; nothing calls it by itself.

Rules:

1. Copies first: each file that changes is kept whole as `<name>.damaged-<time>`, synced, before it
   changes.
2. `salvage` keeps every whole record and drops the damaged stretches; `cut` keeps what lies before
   a point and moves the rest aside, newest segment first: so an interrupted cut leaves no hole.
   Both return a list of everything dropped.
3. A repaired log is marked so for ever (`salvaged`, one line for each stretch, written before it is
   dropped): its state may have holes.
4. The manifest is written anew from what is left, and all of that counts as sealed: a number never
   names another content later on. Then the synced position, which may lie in what was dropped, is
   forgotten. An interrupted repair is refused by recovery or harmless, and running it again
   finishes it.
5. The appender's and the cleaner's locks are held throughout.
6. A replica cuts off what is not in its primary's log (`aside`): that leaves no hole, so rule 3 is
   not for it. Only what is cut off is copied, and nothing counts as dropped from the log's history.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from fastjournal.errors import BadRequest, JournalError, SegmentError, write_failure
from fastjournal.log.care.check import SegmentCheck, verify
from fastjournal.log.care.cleaner import rewrite
from fastjournal.log.care.recovery import Safe, keep_copy
from fastjournal.log.files import read_file, write_whole
from fastjournal.log.manifest import MANIFEST, Manifest, ManifestFile, measure
from fastjournal.log.manifest import read as read_manifest
from fastjournal.log.scan.resync import is_blank
from fastjournal.log.scan.scan import Verdict
from fastjournal.log.scan.scan import verify as check
from fastjournal.log.segment import HEADER_SIZE, Position
from fastjournal.log.segment_directory import SegmentDirectory
from fastjournal.log.synced_mark import SYNCED_MARK, SyncedMark

__all__ = ["SALVAGED", "Dropped", "count_as_whole", "cut", "locked", "remember", "salvage"]

SALVAGED = "salvaged"


@dataclass(frozen=True, slots=True)
class Dropped:
    """Bytes that are no longer in the log, and where their copy is."""

    path: Path
    offset: int
    length: int
    records: int
    """Whole records among them; 0 for damaged bytes, of which nobody knows."""
    reason: str
    copy: Path | None
    """None for a segment that is missing, or held no record."""


def salvage(stream: SegmentDirectory, *, lock_timeout: float = 1.0) -> list[Dropped]:
    """Keep every whole record, drop damaged stretches; returns what was dropped."""
    with locked(stream, lock_timeout):
        dropped: list[Dropped] = []
        known = _known(stream)
        for check in list(verify(stream)):
            if check.faults:
                dropped += _salvage_segment(stream, check)
        if dropped:
            _finish(stream, known)
        return dropped


def _salvage_segment(stream: SegmentDirectory, check: SegmentCheck) -> list[Dropped]:
    files, path = stream.files, check.path
    missing = not files.exists(path)
    if not missing and not files.is_file(path):
        raise SegmentError(path, "is not a regular file: move it away yourself")
    data = b"" if missing else _content(stream, path)
    copy = None if missing else keep_copy(files, path, data, f"damaged-{stream.clock.now()}")
    dropped = [
        Dropped(fault.path, fault.offset, fault.length, 0, fault.reason, copy)
        for fault in check.faults
    ]
    remember(stream, dropped)
    if missing or check.path.name == MANIFEST:
        return dropped
    if data[:HEADER_SIZE] != stream.header.encode():
        # Without its own header nothing says that the bytes belong to this log.
        files.remove(path)
        files.sync_directory(stream.path)
    else:
        rewrite(stream, check.number, data, check.good)
    return dropped


def cut(
    stream: SegmentDirectory, at: Position, *, lock_timeout: float = 1.0, aside: str = ""
) -> list[Dropped]:
    """Keep what lies before `at`; the rest of that segment and all later ones are moved aside.

    `aside`: the suffix of the copies, for a replica (rule 6).
    """
    with locked(stream, lock_timeout):
        numbers = stream.segments()
        if at.segment not in numbers:
            raise BadRequest(f"there is no segment {at.segment}")
        path = stream.segment_path(at.segment)
        data = _content(stream, path)
        if not HEADER_SIZE <= at.offset <= len(data):
            raise BadRequest(f"offset must be {HEADER_SIZE}..{len(data)}, not {at.offset}")
        stream.header.check(data, path)
        stop = _sound(stream, data, HEADER_SIZE, at.offset).end
        if stop != at.offset:
            raise BadRequest(
                f"offset {at.offset} is inside a record; the one before ends at {stop}"
            )
        dropped = [] if aside else _missing(stream, numbers)
        known = _known(stream)
        ManifestFile(stream).replace(known)  # a number that is cut away does not come back
        for number in reversed(numbers):
            if number > at.segment:
                dropped.append(_cut_segment(stream, number, 0, aside))
        if at.offset < len(data):
            dropped.append(_cut_segment(stream, at.segment, at.offset, aside))
        _finish(stream, known, diverged=bool(aside))
        return dropped[::-1]


def _missing(stream: SegmentDirectory, numbers: list[int]) -> list[Dropped]:
    """The newest segment, if it was synced once and is not there any more."""
    safe = Safe.of(stream)
    if not safe.offset or safe.segment <= max(numbers):
        return []
    path = stream.segment_path(safe.segment)
    dropped = [Dropped(path, 0, safe.offset, 0, "segment is missing", None)]
    remember(stream, dropped)
    return dropped


def _cut_segment(stream: SegmentDirectory, number: int, offset: int, aside: str) -> Dropped:
    """Copy a segment, then cut it at `offset`; at 0 it is removed."""
    files, path = stream.files, stream.segment_path(number)
    data = _content(stream, path)
    records = _sound(stream, data, max(offset, HEADER_SIZE), len(data)).records
    copy = None
    if not aside:
        copy = keep_copy(files, path, data, f"damaged-{stream.clock.now()}")
    elif records:
        copy = keep_copy(files, path, data[offset:], aside)
    dropped = Dropped(path, offset, len(data) - offset, records, "after the cut", copy)
    if not aside:
        remember(stream, [dropped])
    if offset:
        with closing(files.open(path)) as handle:
            handle.truncate(offset)
            handle.sync()
    else:
        files.remove(path)
        files.sync_directory(stream.path)
    return dropped


def _sound(stream: SegmentDirectory, data: bytes, start: int, end: int) -> Verdict:
    """The records before the first fault, whatever that is."""
    return check(data, start=start, end=end, torn=lambda *_: True, max_payload=stream.max_payload)


@contextmanager
def locked(stream: SegmentDirectory, timeout: float) -> Iterator[None]:
    """Keep appenders, cleaners and readers out; errors of the disk get their types."""
    stream.check_restored()
    append = stream.lock_appender(timeout)
    try:
        read = stream.lock_readers(exclusive=True, timeout=timeout)
        try:
            yield
        except OSError as error:
            raise write_failure(error, stream.path) from error
        finally:
            read.release()
    finally:
        append.release()


def _content(stream: SegmentDirectory, path: Path) -> bytes:
    try:
        return read_file(stream.files, path)
    except OSError as error:
        raise SegmentError(path, f"cannot be read: {error}") from error


def remember(stream: SegmentDirectory, dropped: list[Dropped]) -> None:
    """Leave a durable line for each stretch that is about to be dropped."""
    files, now = stream.files, stream.clock.now()
    path = stream.path / SALVAGED
    with closing(files.open(path) if files.exists(path) else files.create(path)) as handle:
        for item in dropped:
            line = f"{now} {item.path.name} {item.offset} {item.length} {item.reason}\n"
            write_whole(handle, line.encode())
        handle.sync()
    files.sync_directory(stream.path)


def count_as_whole(stream: SegmentDirectory) -> None:
    """Give a log without a manifest one that says: what is there is all there is."""
    _finish(stream, _known(stream))


def _known(stream: SegmentDirectory) -> Manifest:
    """What the manifest says, nothing if it is missing or damaged, and all numbers ever used."""
    known, mark = Manifest(), SyncedMark.read(stream.files, stream.path)
    with suppress(JournalError):
        known = read_manifest(stream.files, stream.path) or known
    used = max([known.used, mark.segment if mark else -1, *stream.segments()])
    return replace(known, used=used)


def _finish(stream: SegmentDirectory, known: Manifest, *, diverged: bool = False) -> None:
    """All that is left counts as sealed: a number never names another content later on."""
    _trim(stream)
    sealed = {n: measure(stream, n) for n in stream.segments() if n >= known.floor}
    if diverged:
        ManifestFile(stream).replace(replace(known, sealed=sealed, pending=None))
        _forget_synced(stream)
        return
    for number, old in known.sealed.items():
        if number in sealed and sealed[number].size != old.size:
            sealed[number] = sealed[number]._replace(cleaned_to=old.last)
        elif number in sealed:
            sealed[number] = sealed[number]._replace(cleaned_to=old.cleaned_to)
    lost = [old.last for number, old in known.sealed.items() if number not in sealed]
    dropped_to = max([known.dropped_to, *lost, *(one.cleaned_to for one in sealed.values())])
    ManifestFile(stream).replace(replace(known, sealed=sealed, dropped_to=dropped_to, pending=None))
    _forget_synced(stream)


def _trim(stream: SegmentDirectory) -> None:
    """Cut off what the appender had reserved: nothing is appended to these segments any more."""
    for number in stream.segments()[::-1]:
        with closing(stream.files.open(stream.segment_path(number))) as handle:
            data = handle.read(0, handle.size())
            end = _sound(stream, data, HEADER_SIZE, len(data)).end
            if end < len(data) and is_blank(data, end, len(data)):
                handle.truncate(end)
                handle.sync()
            if end > HEADER_SIZE:
                return


def _forget_synced(stream: SegmentDirectory) -> None:
    if stream.files.exists(stream.path / SYNCED_MARK):
        stream.files.remove(stream.path / SYNCED_MARK)
        stream.files.sync_directory(stream.path)

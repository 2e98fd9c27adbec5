"""Functions on key/value entries: SET, GET, DELETE, ADD, NOT, TRUNCATE, LOCK, RENAME, ALIAS.

Rules: those of `dispatch`, and

1. SET of type 6 is a job, of any other type an entry. GET of a key means its entry, else its job.
   DELETE of a key means both, unless a queue or an id is named.
2. Whoever has said HELLO is known by that name, anyone else by the connection: the name owns locks
   and leases, and makes ADD and NOT with a timestamp happen once. A request may give another one.
3. An entry persists only if bit 9 or 12 says so; bit 9 also waits until it is on stable storage.
4. A change that gives a fencing number is made only while that lock is held (D-22).
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from fastjournal.buffers import BytesWriter
from fastjournal.clock import SECOND
from fastjournal.daemon.fj import jobs
from fastjournal.daemon.fj.jobs import deadline_of
from fastjournal.daemon.session import KEY, Session, Subject
from fastjournal.errors import NotFound
from fastjournal.journal.entries.cursor import PATTERN, RANGE, Scan
from fastjournal.journal.entries.ground import is_busy, is_kept, keys_of, touch_length
from fastjournal.journal.entries.locks import Writer
from fastjournal.journal.entries.plan import Decided
from fastjournal.journal.entries.reads import Reading
from fastjournal.journal.state.row import DELETED_ROW, Row, value_of
from fastjournal.wire.fj.entry_codec import ALL, decode_who, write_entry
from fastjournal.wire.fj.frames import NO_VALUE, FrameReader, decode_integer, encode_integer
from fastjournal.wire.fj.functions import (
    DATA,
    EXACT,
    JOBS,
    LISTEN,
    LOCKED,
    OVERWRITE,
    PERSIST,
    PERSIST_SET,
    QUERY_BITS,
    QUERY_SHIFT,
    STALE,
    TIMEOUT,
    TTL,
    WORKED_ON,
    Query,
    Type,
)
from fastjournal.wire.fj.replies import (
    Pair,
    encode_ok,
    encode_reply,
    write_ok,
    write_reply,
    write_value_reply,
)
from fastjournal.wire.fj.requests import Request, request_of

__all__ = [
    "add",
    "alias",
    "delete_any",
    "flip",
    "get_any",
    "lock",
    "rename",
    "set_entry",
    "truncate",
    "unlock",
]


_RANGE: Final[i64] = Query.RANGE << QUERY_SHIFT
_PATTERN: Final[i64] = Query.PATTERN << QUERY_SHIFT
_CURSOR: Final[i64] = Query.CURSOR << QUERY_SHIFT


def _by(session: Session, request: Request) -> Writer:
    """Who makes a change."""
    return _writer(session, request.upper)


def _writer(session: Session, upper: bytes | None) -> Writer:
    if upper is None:
        return Writer(session.name or session.own_name)
    fence, name = decode_who(upper)
    return Writer(name or session.name or session.own_name, fence)


def _upper(frame: FrameReader) -> bytes | None:
    """Who the message says to make a change, if it does."""
    return frame.upper if frame.flags & QUERY_BITS == _RANGE else None


def set_entry(session: Session, frame: FrameReader, now: i64) -> None:
    """Store an entry."""
    asked = frame.flags
    decided = session.entries.set(
        frame.key,
        int(frame.kind),
        frame.value(),
        timestamp=int(session.stamp(frame.timestamp)),
        expires=int(jobs.deadline(frame, now)),
        ttl=int(frame.ttl * SECOND),
        exact=asked & EXACT != 0,
        overwrite=asked & OVERWRITE != 0,
        persist=asked & (PERSIST | PERSIST_SET) != 0,
        by=_writer(session, _upper(frame)),
        now=now,
    )
    if asked & LISTEN:
        session.listen(Subject(KEY, frame.key), int(frame.identifier))
    write_ok(session.out, frame.identifier, now, _flags(session, decided))


def add(session: Session, frame: FrameReader, now: i64) -> None:
    """Add to a number; answered with the sum."""
    upper = _upper(frame)
    decided = session.entries.add(
        frame.key,
        int(frame.kind),
        frame.value(),
        sender=_sender(session, int(frame.timestamp), upper),
        number=int(frame.timestamp),
        timestamp=int(session.stamp(frame.timestamp)),
        persist=frame.flags & (PERSIST | PERSIST_SET) != 0,
        by=_writer(session, upper),
        now=now,
    )
    flags = _flags(session, decided) | DATA
    value = decided.data
    write_value_reply(session.out, frame.identifier, now, flags, decided.kind, len(value))
    session.out.write(value)


def _safe(session: Session, decided: Decided) -> i64:
    """Bit 9, unless the effect is in memory only: no sync brings that to stable storage."""
    return session.stable if decided.remembered is None or decided.logged is not None else 0


def _flags(session: Session, decided: Decided) -> i64:
    return _safe(session, decided) | STALE if decided.stale else _safe(session, decided)


def get_any(session: Session, frame: FrameReader, now: i64) -> None:
    """Read one entry or job, or several entries."""
    asked = frame.flags
    if asked & QUERY_BITS:
        _get_several(session, frame, now)
        return
    operations = session.entries
    if (
        frame.ttl != ALL
        and operations.find(frame.key, now) is None
        and _has_jobs(session, frame.key)
    ):
        session.out.write(jobs.get(session, request_of(frame), int(now)))
        return
    reading = _reading(session, frame, now)
    row = operations.read(frame.key, reading, now)
    shown = _Shown(session, row, reading.worker, now)
    timeout = row.expires
    if asked & TIMEOUT and not asked & EXACT:
        timeout = shown.until
    pair = _pair(session, b"", row, shown, frame)
    write_reply(
        session.out, frame.identifier, row.modified, asked & DATA | shown.marks, [pair], False,
        None, timeout or -1,
    )  # fmt: skip


def _has_jobs(session: Session, key: bytes) -> bool:
    """Whether there are jobs of a key; a tombstone is none."""
    for row in session.state.keys.everywhere(key):
        if row.queue.name and row.stage != DELETED_ROW:
            return True
    return False


def _get_several(session: Session, frame: FrameReader, now: i64) -> None:
    query = frame.flags & QUERY_BITS
    if query == _CURSOR:
        scan = Scan.resume(frame.key)
    elif query == _PATTERN:
        scan = Scan(PATTERN, b"", frame.key)
    else:
        scan = Scan(RANGE, frame.key, frame.upper, int(frame.limit))
    reading = _reading(session, frame, now)
    page = session.entries.rows(scan, reading, now)
    flags = frame.flags & DATA
    pairs: list[Pair] = []
    for key, row in page.rows:
        if reading.data:
            session.engine.load(row)
        shown = _Shown(session, row, reading.worker, now)
        flags |= shown.marks
        pairs.append(_pair(session, key, row, shown, frame))
    cursor = page.cursor or None
    write_reply(session.out, frame.identifier, now, flags, pairs, True, cursor)


def _reading(session: Session, frame: FrameReader, now: i64) -> Reading:
    asked = frame.flags
    exact = asked & EXACT != 0
    until = int(jobs.deadline(frame, now))
    worker = b"" if frame.kind == NO_VALUE else frame.value()
    return Reading(
        asked & DATA != 0,
        True if exact and not until else None,
        until if exact else 0,
        0 if exact else until,
        worker or session.name or session.own_name,
        asked & WORKED_ON != 0,
    )


@final
@mypyc_attr(acyclic=True)
class _Shown:
    """What else there is to be told of an entry: who works on it, whether it is locked."""

    def __init__(self, session: Session, row: Row, reader: bytes, now: i64) -> None:
        operations = session.entries
        time = operations.ground.base.time(now)
        self.keys = keys_of(row)
        self.locked = operations.locks.holder(self.keys, time) is not None
        self.until: i64 = 0
        self.worker = b""
        self.marks: i64 = LOCKED if self.locked else 0
        if is_busy(row, time):
            self.until = row.when
            self.worker = row.rare.worker
            if self.worker != reader:
                self.marks |= WORKED_ON


def _pair(session: Session, key: bytes, row: Row, shown: _Shown, frame: FrameReader) -> Pair:
    data = value_of(row) if frame.flags & DATA else b""
    if frame.ttl != ALL:
        return Pair(key, int(row.kind), data, int(row.expires) if frame.flags & TTL else None)
    out = BytesWriter()
    write_entry(
        out, row.inserted, row.modified, row.expires, touch_length(row), shown.until, row.attempts,
        is_kept(row), shown.locked, shown.worker, shown.keys, data,
    )  # fmt: skip
    return Pair(key, int(row.kind), out.getvalue())


def delete_any(session: Session, request: Request, now: int) -> bytes:
    """Delete an entry and the jobs of a key."""
    if request.by_id or request.value or request.flags & JOBS:
        return jobs.delete(session, request, now)
    operations = session.entries
    # An empty queue is no queue: the entry alone is meant.
    both = request.value_type is None
    if both and not session.may_take:  # whoever only produces deletes the entry, never jobs
        if _has_jobs(session, request.key):
            jobs.check_may_delete(session)
        both = False
    decided = operations.delete(
        request.key,
        timestamp=session.stamp(request.timestamp),
        purge=request.flags & OVERWRITE != 0,
        persist=request.persist,
        by=_by(session, request),
    )
    found, stale = decided.found, decided.stale
    if both:
        others = jobs.delete_everywhere(session, request)
        found, stale = found + others.found, stale or others.stale
    pair = Pair(b"", Type.INTEGER, encode_integer(found))
    flags = _safe(session, decided) | (STALE if stale and not found else 0)
    return encode_reply(request.identifier, now, flags=flags, pairs=(pair,))


def _changed(session: Session, request: Request, decided: Decided, now: int) -> bytes:
    """The value as it is now."""
    pair = Pair(b"", decided.kind, decided.data)
    flags = _flags(session, decided) | DATA
    return encode_reply(request.identifier, now, flags=flags, pairs=(pair,))


def _sender(session: Session, timestamp: int, upper: bytes | None) -> bytes:
    if not timestamp:
        return b""
    return session.name if upper is None else decode_who(upper)[1] or session.name


def flip(session: Session, request: Request, now: int) -> bytes:
    """Turn a boolean over; answered with the new one."""
    decided = session.entries.flip(
        request.key,
        sender=_sender(session, request.timestamp, request.upper),
        number=request.timestamp,
        timestamp=session.stamp(request.timestamp),
        by=_by(session, request),
    )
    return _changed(session, request, decided, now)


def truncate(session: Session, request: Request, now: int) -> bytes:
    """Cut or fill up a value."""
    decided = session.entries.truncate(
        request.key,
        decode_integer(request.value),
        timestamp=session.stamp(request.timestamp),
        by=_by(session, request),
    )
    return encode_ok(request.identifier, now, _flags(session, decided))


def lock(session: Session, request: Request, now: int) -> bytes:
    """Lock a key; answered with the fencing number and the deadline."""
    until = deadline_of(request, now)
    held = session.entries.lock(request.key, _by(session, request).owner, until)
    pair = Pair(b"", Type.INTEGER, encode_integer(held.fence))
    return encode_reply(request.identifier, now, timeout=held.until, flags=DATA, pairs=(pair,))


def unlock(session: Session, request: Request, now: int) -> bytes:
    """Free a lock."""
    if not session.entries.unlock(request.key, _by(session, request)):
        raise NotFound("there is no lock")
    return encode_ok(request.identifier, now)


def rename(session: Session, request: Request, now: int) -> bytes:
    """Give an entry another key."""
    decided = session.entries.rename(
        request.key,
        request.value,
        timestamp=session.stamp(request.timestamp),
        overwrite=request.flags & OVERWRITE != 0,
        by=_by(session, request),
    )
    return encode_ok(request.identifier, now, _flags(session, decided))


def alias(session: Session, request: Request, now: int) -> bytes:
    """Give an entry a further key."""
    decided = session.entries.alias(
        request.key,
        request.value,
        timestamp=session.stamp(request.timestamp),
        by=_by(session, request),
    )
    return encode_ok(request.identifier, now, _flags(session, decided))

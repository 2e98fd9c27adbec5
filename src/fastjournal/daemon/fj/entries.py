"""Functions on key/value entries: SET, GET, DELETE, ADD, NOT, TRUNCATE, LOCK, RENAME, ALIAS.

Rules: those of `dispatch`, and

1. SET of type 6 is a job, of any other type an entry. GET of a key means its entry, else its job.
   DELETE of a key means both, unless a queue or an id is named.
2. Whoever has said HELLO is known by that name, anyone else by the connection: the name owns locks
   and leases, and makes ADD and NOT with a timestamp happen once. A request may give another one.
3. An entry persists only if a bit says so: 9 or 12, answered on stable storage, or 6, answered as
   the sync policy promises.
4. A change that gives a fencing number is made only while that lock is held (D-22).
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from fastjournal.buffers import BytesWriter
from fastjournal.clock import SECOND
from fastjournal.daemon.fj import jobs
from fastjournal.daemon.session import KEY, Session, Subject
from fastjournal.errors import NotFound, WrongType
from fastjournal.journal.entries.ground import Decided, is_busy, is_kept, keys_of, touch_length
from fastjournal.journal.entries.key_query import PATTERN, RANGE, KeyQuery
from fastjournal.journal.entries.locks import Writer
from fastjournal.journal.entries.reads import Reading
from fastjournal.journal.state.row import DELETED_ROW, Row
from fastjournal.wire.fj.entry_codec import ALL, ALL_READ, decode_who, write_entry
from fastjournal.wire.fj.fields import decode_integer, encode_integer
from fastjournal.wire.fj.functions import (
    BY_ID,
    DATA,
    EXACT,
    JOBS,
    KEPT,
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
from fastjournal.wire.fj.replies import Pair, write_ok, write_reply, write_value_reply
from fastjournal.wire.fj.requests import NO_VALUE, FrameReader, request_of

__all__ = [
    "add",
    "alias",
    "delete_any",
    "flip",
    "get_any",
    "lock",
    "picture_of",
    "rename",
    "set_entry",
    "truncate",
    "unlock",
]

_RANGE: Final[i64] = int(Query.RANGE) << QUERY_SHIFT
_PATTERN: Final[i64] = int(Query.PATTERN) << QUERY_SHIFT
_CURSOR: Final[i64] = int(Query.CURSOR) << QUERY_SHIFT
_INTEGER: Final[i64] = int(Type.INTEGER)
_LASTS: Final[i64] = PERSIST | PERSIST_SET | KEPT


def _by(session: Session, frame: FrameReader) -> Writer:
    """Who makes a change."""
    if frame.flags & QUERY_BITS != _RANGE:
        return Writer(session.name or session.own_name)
    fence, name = decode_who(frame.upper)
    return Writer(name or session.name or session.own_name, fence)


def _sender(session: Session, frame: FrameReader, by: Writer) -> bytes:
    """Whose change is made once; empty: it is made whenever it is asked for."""
    return by.owner if frame.timestamp and by.owner != session.own_name else b""


def _safe(session: Session, decided: Decided) -> i64:
    """Bit 9, unless the effect is in memory only: no sync brings that to stable storage."""
    return session.stable if decided.remembered is None or decided.logged is not None else 0


def _flags(session: Session, decided: Decided) -> i64:
    flags = _safe(session, decided)
    if decided.stale:
        flags |= STALE
    return flags


def set_entry(session: Session, frame: FrameReader, now: i64) -> None:
    """Store an entry."""
    flags = frame.flags
    ttl: i64 = 0
    if flags & TTL:
        ttl = frame.ttl * SECOND
    decided = session.entries.set(
        frame.key,
        frame.kind,
        frame.value(),
        timestamp=session.stamp(frame.timestamp),
        expires=jobs.deadline(frame, now),
        ttl=ttl,
        exact=flags & EXACT != 0,
        overwrite=flags & OVERWRITE != 0,
        persist=flags & _LASTS != 0,
        by=_by(session, frame),
        now=now,
    )
    if flags & LISTEN:
        session.listen(Subject(KEY, frame.key), int(frame.identifier))
    write_ok(session.out, frame.identifier, now, _flags(session, decided))


def get_any(session: Session, frame: FrameReader, now: i64) -> None:
    """Read one entry or job, or several entries."""
    if frame.flags & QUERY_BITS:
        _several(session, frame, now)
        return
    entries = session.entries
    key = frame.key
    found = entries.find(key, now)
    accessed: i64 = 0 if found is None else entries.ground.accessed.of(found.id)
    if not _wants_all(frame) and found is None and _has_jobs(session, key):
        session.out.write(jobs.get(session, request_of(frame), now))
        return
    reading = _reading(session, frame, now)
    row = entries.read(key, reading, now)
    at = entries.ground.base.time(now)
    timeout = row.expires
    if frame.flags & (TIMEOUT | EXACT) == TIMEOUT:
        timeout = row.when if is_busy(row, at) else 0
    flags = frame.flags & DATA | _reply_flags(session, row, reading.worker, at)
    pair = _pair(session, frame, row, b"", at, accessed)
    write_reply(session.out, frame.identifier, row.modified, flags, (pair,), timeout=timeout or -1)


def _wants_all(frame: FrameReader) -> bool:
    """All that is known of an entry is to be told."""
    return frame.flags & TTL != 0 and frame.ttl in (ALL, ALL_READ)


def _has_jobs(session: Session, key: bytes) -> bool:
    """Whether there are jobs of a key; a tombstone is none."""
    for row in session.state.keys.everywhere(key):
        if row.queue.name and row.stage != DELETED_ROW:
            return True
    return False


def _several(session: Session, frame: FrameReader, now: i64) -> None:
    query = frame.flags & QUERY_BITS
    if query == _CURSOR:
        wanted = KeyQuery.resume(frame.key)
    elif query == _PATTERN:
        wanted = KeyQuery(PATTERN, b"", frame.key)
    else:
        wanted = KeyQuery(RANGE, frame.key, frame.upper, frame.limit)
    reading = _reading(session, frame, now)
    entries = session.entries
    page = entries.rows(wanted, reading, now)
    at = entries.ground.base.time(now)
    flags = frame.flags & DATA
    pairs: list[Pair] = []
    for key, row in page.rows:
        flags |= _reply_flags(session, row, reading.worker, at)
        pairs.append(_pair(session, frame, row, key, at, entries.ground.accessed.of(row.id)))
    until: i64 = reading.lease if pairs and reading.lease else -1
    write_reply(session.out, frame.identifier, now, flags, pairs, True, page.cursor or None, until)


def _reading(session: Session, frame: FrameReader, now: i64) -> Reading:
    flags = frame.flags
    until = jobs.deadline(frame, now)
    worker = session.name or session.own_name
    if frame.kind != NO_VALUE:
        worker = frame.value() or worker
    skip = flags & WORKED_ON != 0
    if flags & EXACT:
        return Reading(flags & DATA != 0, None if until else True, until, 0, worker, skip)
    return Reading(flags & DATA != 0, None, 0, until, worker, skip)


def _reply_flags(session: Session, row: Row, worker: bytes, at: i64) -> i64:
    """The bits of a reply that tell of a lease of somebody else, and of a lock."""
    found: i64 = 0
    if is_busy(row, at) and row.rare.worker != worker:
        found = WORKED_ON
    if _is_locked(session, row, at):
        found |= LOCKED
    return found


def _is_locked(session: Session, row: Row, at: i64) -> bool:
    locks = session.entries.locks
    return len(locks) > 0 and locks.holder(keys_of(row), at) is not None


def _pair(
    session: Session, frame: FrameReader, row: Row, key: bytes, at: i64, accessed: i64
) -> Pair:
    """An entry as it was asked for; its value is read from the log if need be."""
    value = b""
    if frame.flags & DATA:
        known = row.value
        value = session.engine.value(row) if known is None else known
    if not _wants_all(frame):
        return Pair(key, row.kind, value, row.expires if frame.flags & TTL else None)
    read_at = accessed if frame.ttl == ALL_READ else -1
    return Pair(key, row.kind, picture_of(row, value, _is_locked(session, row, at), at, read_at))


def picture_of(row: Row, value: bytes, locked: bool, at: i64, accessed: i64) -> bytes:
    """All that is known of an entry; `accessed`: when it was read last, -1: that is not told."""
    until: i64 = 0
    worker = b""
    if is_busy(row, at):
        until = row.when
        worker = row.rare.worker
    picture = BytesWriter()
    write_entry(
        picture, row.inserted, row.modified, row.expires, touch_length(row), until, row.attempts,
        is_kept(row), locked, worker, keys_of(row), value, accessed,
    )  # fmt: skip
    return picture.getvalue()


def delete_any(session: Session, frame: FrameReader, now: i64) -> None:
    """Delete an entry and the jobs of a key."""
    flags = frame.flags
    named = frame.kind != NO_VALUE and frame.at < frame.end
    if flags & (BY_ID | JOBS) or named:
        session.out.write(jobs.delete(session, request_of(frame), now))
        return
    # An empty queue is no queue: the entry alone is meant.
    both = frame.kind == NO_VALUE
    if both and not session.may_take:  # whoever only produces deletes the entry, never jobs
        if _has_jobs(session, frame.key):
            jobs.check_may_delete(session)
        both = False
    decided = session.entries.delete(
        frame.key,
        timestamp=session.stamp(frame.timestamp),
        purge=flags & OVERWRITE != 0,
        persist=flags & PERSIST != 0,
        by=_by(session, frame),
        now=now,
    )
    found = decided.found
    stale = decided.stale
    if both:
        others = jobs.delete_everywhere(session, request_of(frame), _by(session, frame))
        found += others.found
        stale = stale or others.stale
    answer = _safe(session, decided)
    if stale and not found:
        answer |= STALE
    _write_value(session, frame, now, answer, _INTEGER, encode_integer(found))


def _write_value(
    session: Session, frame: FrameReader, now: i64, flags: i64, kind: i64, value: bytes
) -> None:
    write_value_reply(session.out, frame.identifier, now, flags, kind, len(value))
    session.out.write(value)


def _write_changed(session: Session, frame: FrameReader, decided: Decided, now: i64) -> None:
    """The value as it is now."""
    flags = _flags(session, decided) | DATA
    _write_value(session, frame, now, flags, decided.kind, decided.data)


def add(session: Session, frame: FrameReader, now: i64) -> None:
    """Add to a number; answered with the sum."""
    by = _by(session, frame)
    decided = session.entries.add(
        frame.key,
        frame.kind,
        frame.value(),
        sender=_sender(session, frame, by),
        number=frame.timestamp,
        timestamp=session.stamp(frame.timestamp),
        persist=frame.flags & _LASTS != 0,
        by=by,
        now=now,
    )
    _write_changed(session, frame, decided, now)


def _refuse_job(session: Session, key: bytes, now: i64) -> None:
    """A key that has jobs and no entry: their values are changed by SET alone."""
    if session.entries.find(key, now) is None and _has_jobs(session, key):
        raise WrongType("the key is that of a job")


def flip(session: Session, frame: FrameReader, now: i64) -> None:
    """Turn a boolean over; answered with the new one."""
    _refuse_job(session, frame.key, now)
    by = _by(session, frame)
    decided = session.entries.flip(
        frame.key,
        sender=_sender(session, frame, by),
        number=frame.timestamp,
        timestamp=session.stamp(frame.timestamp),
        by=by,
        now=now,
    )
    _write_changed(session, frame, decided, now)


def truncate(session: Session, frame: FrameReader, now: i64) -> None:
    """Cut or fill up a value."""
    _refuse_job(session, frame.key, now)
    decided = session.entries.truncate(
        frame.key,
        decode_integer(frame.value()),
        timestamp=session.stamp(frame.timestamp),
        by=_by(session, frame),
        now=now,
    )
    write_ok(session.out, frame.identifier, now, _flags(session, decided))


def lock(session: Session, frame: FrameReader, now: i64) -> None:
    """Lock a key; answered with the fencing number and the deadline."""
    owner = _by(session, frame).owner
    taken = session.entries.lock(frame.key, owner, jobs.deadline(frame, now))
    pair = Pair(b"", Type.INTEGER, encode_integer(taken.fence))
    write_reply(session.out, frame.identifier, now, DATA, (pair,), timeout=taken.until)


def unlock(session: Session, frame: FrameReader, now: i64) -> None:
    """Free a lock."""
    if not session.entries.unlock(frame.key, _by(session, frame)):
        raise NotFound("there is no lock")
    write_ok(session.out, frame.identifier, now)


def rename(session: Session, frame: FrameReader, now: i64) -> None:
    """Give an entry another key."""
    _refuse_job(session, frame.key, now)
    decided = session.entries.rename(
        frame.key,
        frame.value(),
        timestamp=session.stamp(frame.timestamp),
        overwrite=frame.flags & OVERWRITE != 0,
        by=_by(session, frame),
        now=now,
    )
    write_ok(session.out, frame.identifier, now, _flags(session, decided))


def alias(session: Session, frame: FrameReader, now: i64) -> None:
    """Give an entry a further key."""
    _refuse_job(session, frame.key, now)
    decided = session.entries.alias(
        frame.key,
        frame.value(),
        timestamp=session.stamp(frame.timestamp),
        by=_by(session, frame),
        now=now,
    )
    write_ok(session.out, frame.identifier, now, _flags(session, decided))

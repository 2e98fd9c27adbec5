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

from fastjournal.clock import SECOND
from fastjournal.daemon.fj import jobs
from fastjournal.daemon.fj.jobs import deadline_of
from fastjournal.daemon.session import KEY, Session, Subject
from fastjournal.entry import Entry
from fastjournal.errors import NotFound
from fastjournal.journal.engine.entry_operations import EntryOperations
from fastjournal.journal.entries.cursor import PATTERN, RANGE, Scan
from fastjournal.journal.entries.locks import Writer
from fastjournal.journal.entries.plan import Decided
from fastjournal.journal.entries.reads import Reading
from fastjournal.model import State
from fastjournal.wire.fj.entry_codec import ALL, decode_who, encode_entry
from fastjournal.wire.fj.frames import decode_integer, encode_integer
from fastjournal.wire.fj.functions import (
    DATA,
    EXACT,
    JOBS,
    LISTEN,
    LOCKED,
    OVERWRITE,
    STALE,
    TTL,
    WORKED_ON,
    Query,
    Type,
)
from fastjournal.wire.fj.replies import Pair, encode_ok, encode_reply
from fastjournal.wire.fj.requests import Request

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


def _operations(session: Session) -> EntryOperations:
    return session.journal.entries.operations


def _by(session: Session, request: Request) -> Writer:
    """Who makes a change."""
    if request.upper is None:
        return Writer(session.name or session.own_name)
    fence, name = decode_who(request.upper)
    return Writer(name or session.name or session.own_name, fence)


def set_entry(session: Session, request: Request, now: int) -> bytes:
    """Store an entry."""
    kind = request.value_type
    assert kind is not None
    decided = _operations(session).set(
        request.key,
        kind,
        request.value,
        timestamp=session.stamp(request.timestamp),
        expires=deadline_of(request, now),
        ttl=(request.ttl or 0) * SECOND,
        exact=request.flags & EXACT != 0,
        overwrite=request.flags & OVERWRITE != 0,
        persist=request.persist,
        by=_by(session, request),
    )
    if request.flags & LISTEN:
        session.listen(Subject(KEY, request.key), request.identifier)
    return encode_ok(request.identifier, now, _flags(session, decided))


def _safe(session: Session, decided: Decided) -> int:
    """Bit 9, unless the effect is in memory only: no sync brings that to stable storage."""
    return session.stable if decided.remembered is None or decided.logged is not None else 0


def _flags(session: Session, decided: Decided) -> int:
    return _safe(session, decided) | (STALE if decided.stale else 0)


def get_any(session: Session, request: Request, now: int) -> bytes:
    """Read one entry or job, or several entries."""
    operations = _operations(session)
    if request.query is not Query.KEY:
        return _several(session, request, now)
    all_of_it = request.ttl == ALL
    if (
        not all_of_it
        and operations.find(request.key, now) is None
        and _has_jobs(session, request.key)
    ):
        return jobs.get(session, request, now)
    reading = _reading(session, request, now)
    entry = operations.get(request.key, reading)
    flags = request.flags & DATA | _marks(reading.worker, entry)
    leased = request.timeout is not None and not request.flags & EXACT
    timeout = entry.lease_until if leased else entry.expires
    pair = _pair(entry, request)
    pair.key = b""
    return encode_reply(
        request.identifier, entry.modified, flags=flags, timeout=timeout or None, pairs=(pair,)
    )


def _has_jobs(session: Session, key: bytes) -> bool:
    """Whether there are jobs of a key; a tombstone is none."""
    return any(
        row.queue.name and row.state is not State.DELETED
        for row in session.state.keys.everywhere(key)
    )


def _several(session: Session, request: Request, now: int) -> bytes:
    if request.query is Query.CURSOR:
        scan = Scan.resume(request.key)
    elif request.query is Query.PATTERN:
        scan = Scan(PATTERN, b"", request.key)
    else:
        scan = Scan(RANGE, request.key, request.upper or b"", request.limit or 0)
    reading = _reading(session, request, now)
    page = _operations(session).page(scan, reading)
    flags = request.flags & DATA
    for entry in page.entries:
        flags |= _marks(reading.worker, entry)
    pairs = [_pair(entry, request) for entry in page.entries]
    return encode_reply(
        request.identifier, now, flags=flags, pairs=pairs, several=True, cursor=page.cursor or None
    )


def _reading(session: Session, request: Request, now: int) -> Reading:
    exact = request.flags & EXACT != 0
    until = deadline_of(request, now)
    return Reading(
        data=request.flags & DATA != 0,
        touch=True if exact and not until else None,
        expires=until if exact else 0,
        lease=0 if exact else until,
        worker=request.value or session.name or session.own_name,
        skip=request.flags & WORKED_ON != 0,
    )


def _marks(worker: bytes, entry: Entry) -> int:
    busy = entry.lease_until and entry.worker != worker
    return (WORKED_ON if busy else 0) | (LOCKED if entry.locked else 0)


def _pair(entry: Entry, request: Request) -> Pair:
    if request.ttl == ALL:
        return Pair(entry.key, entry.kind, encode_entry(entry))
    return Pair(entry.key, entry.kind, entry.data, entry.expires if request.flags & TTL else None)


def delete_any(session: Session, request: Request, now: int) -> bytes:
    """Delete an entry and the jobs of a key."""
    if request.by_id or request.value or request.flags & JOBS:
        return jobs.delete(session, request, now)
    operations = _operations(session)
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


def _sender(session: Session, request: Request) -> bytes:
    if not request.timestamp:
        return b""
    return session.name if request.upper is None else decode_who(request.upper)[1] or session.name


def add(session: Session, request: Request, now: int) -> bytes:
    """Add to a number; answered with the sum."""
    assert request.value_type is not None
    decided = _operations(session).add(
        request.key,
        request.value_type,
        request.value,
        sender=_sender(session, request),
        number=request.timestamp,
        timestamp=session.stamp(request.timestamp),
        persist=request.persist,
        by=_by(session, request),
    )
    return _changed(session, request, decided, now)


def flip(session: Session, request: Request, now: int) -> bytes:
    """Turn a boolean over; answered with the new one."""
    decided = _operations(session).flip(
        request.key,
        sender=_sender(session, request),
        number=request.timestamp,
        timestamp=session.stamp(request.timestamp),
        by=_by(session, request),
    )
    return _changed(session, request, decided, now)


def truncate(session: Session, request: Request, now: int) -> bytes:
    """Cut or fill up a value."""
    decided = _operations(session).truncate(
        request.key,
        decode_integer(request.value),
        timestamp=session.stamp(request.timestamp),
        by=_by(session, request),
    )
    return encode_ok(request.identifier, now, _flags(session, decided))


def lock(session: Session, request: Request, now: int) -> bytes:
    """Lock a key; answered with the fencing number and the deadline."""
    until = deadline_of(request, now)
    held = _operations(session).lock(request.key, _by(session, request).owner, until)
    pair = Pair(b"", Type.INTEGER, encode_integer(held.fence))
    return encode_reply(request.identifier, now, timeout=held.until, flags=DATA, pairs=(pair,))


def unlock(session: Session, request: Request, now: int) -> bytes:
    """Free a lock."""
    if not _operations(session).unlock(request.key, _by(session, request)):
        raise NotFound("there is no lock")
    return encode_ok(request.identifier, now)


def rename(session: Session, request: Request, now: int) -> bytes:
    """Give an entry another key."""
    decided = _operations(session).rename(
        request.key,
        request.value,
        timestamp=session.stamp(request.timestamp),
        overwrite=request.flags & OVERWRITE != 0,
        by=_by(session, request),
    )
    return encode_ok(request.identifier, now, _flags(session, decided))


def alias(session: Session, request: Request, now: int) -> bytes:
    """Give an entry a further key."""
    decided = _operations(session).alias(
        request.key,
        request.value,
        timestamp=session.stamp(request.timestamp),
        by=_by(session, request),
    )
    return encode_ok(request.identifier, now, _flags(session, decided))

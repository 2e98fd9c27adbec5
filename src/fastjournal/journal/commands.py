"""Commands <-> payload bytes: the language of the log.

uv, sv, b and t are explained in `varint`; z is a 15-byte Workq time (`log.record`).

    type  name      payload after the type byte
    ----  --------  ------------------------------------------------------------------------
       1  ADD       id 16, b name, uv ttr ms, uv ttl ms, sv priority, uv max-attempts,
       2  SCHEDULE  uv max-fails, b payload, z job time (zero for ADD), z created
       3  COMPLETE  id, b result (may be missing altogether: the documented 17-byte form)
       4  FAIL      id, b result (likewise)
       5  DELETE    id
       6  EXPIRE    id
       7  START     id              leased from the record's TIME for ttr
       8  TIMEOUT   id              waiting again, or failed when its attempts are used up
      32  PUT       id, u8 image version 1, b queue, b key, uv aliases + b each, sv rank, t due,
                    t inserted, t modified, t expires, uv ttl ms, u8 kind, b value, u8 flags,
                    uv lease ms, uv attempts, uv timeouts, uv fails, uv max-attempts,
                    uv max-timeouts, uv max-fails
      34  LEASE     id, t start, t until, uv attempt, b worker
      35  RENEW     id, t until, uv attempt
      36  TOUCH     id, t expires
      37  TOMB      id, b queue, b key, t modified
      38  PURGE     id, b queue, b key, t modified
      39  DEAD      id, u8 reason (1 time-outs, 2 attempts, 3 failed), t when
      40  KEYS      id, b key, uv aliases + b each, t modified
      41  VALUE     id, u8 kind, b value, t modified, b operation id
      44  GROUP     uv count, b each: whole payloads of other types, applied as one
      45  MARK      t when, uv segment, uv offset, b note
      46  QUEUE     b queue, u8 layout 1, uv count, then uv setting + sv number each: the settings
                    that differ from the defaults (numbers: `SETTING_NUMBERS`)
      47  RETRY     id, u8 reason (1 failed, 2 released, 3 timed out), t due, uv timeouts,
                    uv fails, b note
      48  REDRIVE   id, t due, uv max-attempts
      49  SENDER    b name, t mark: all requests of this sender up to mark are in; 0: forget it
      50  ENDS      uv count, then id, u8 end, uv token each: how leases and jobs ended whose own
                    records may be gone (1 done, 2 dead, 3 gone, 4 failed and 5 released for a twin,
                    6 failed and 7 released to wait again; +8: the row was still there)

PUT flags: bit 0 persist, bit 1 keep_versions, bit 2 came through Workq, bit 3 by SCHEDULE.
33, 42, 43 and 9..31 are reserved; 51 is the next free number.

Rules:

1. Types 1..8 are those of Workq, byte for byte; ours begin at 32, so Workq refuses them loudly.
2. Every command states its result: applying it needs neither clock nor choice.
3. The 16 bytes after the type byte name the row, except in GROUP, MARK, QUEUE, SENDER and ENDS.
4. `encode(decode(payload)) == payload` for everything we write. Unknown types, bytes that end too
   early, bytes left over: `CorruptCommand`.
5. PUT, ADD and SCHEDULE state the whole row: what came before does not matter any more.
6. To change a layout: raise its version byte, keep the old reader under its number, add a golden
   file. A new setting gets the next number; numbers are never used twice.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from struct import Struct
from typing import Any

from fastjournal.errors import CorruptCommand
from fastjournal.journal.image import get_aliases, get_put, put_aliases, put_put
from fastjournal.journal.kinds import (
    Add,
    Command,
    Complete,
    Dead,
    Delete,
    Ends,
    Expire,
    Fail,
    Group,
    Keys,
    Lease,
    Mark,
    Purge,
    Put,
    Queue,
    Redrive,
    Renew,
    Retry,
    Schedule,
    Sender,
    Start,
    Timeout,
    Tomb,
    Touch,
    Value,
)
from fastjournal.journal.settings import SETTING_NUMBERS, get_queue, put_queue
from fastjournal.journal.varint import T, blob, get_blob, get_sv, get_t, get_uv, sv, uv
from fastjournal.log.record import BrokenRecord, decode_time, encode_time

__all__ = ["SETTING_NUMBERS", "TYPE_NAMES", "TYPE_OF", "decode", "encode", "is_own", "row_ids"]

_LEASE = Struct(">B16sQQ")
_DUE = Struct(">B16sBQ")
_INSTANT = Struct(">B16sQ")
_NO_TIME = bytes((1,)) + bytes(12)
_ROWLESS = (Group, Mark, Queue, Sender, Ends)
_FIRST_OWN = b"\x20"
_new = tuple.__new__


def encode(command: Command, zone: int = 0) -> bytes:
    """The payload of a command.

    `zone` are the two zone bytes of Workq times: 0 as documented, 0xFFFF as the real server writes.
    """
    if zone and isinstance(command, (Add, Schedule)):
        return _put_workq(command, zone)
    return _ENCODERS[command.__class__](command)


def decode(payload: bytes) -> Command:
    """The command of a payload; `CorruptCommand` if there is none."""
    try:
        command, end = _DECODERS[payload[0]](payload)
    except (IndexError, KeyError, struct.error, CorruptCommand) as fault:
        raise _corrupt(payload, fault) from None
    if end != len(payload):
        raise _corrupt(payload, None, end)
    return command


def _corrupt(payload: bytes, fault: Exception | None, end: int = 0) -> CorruptCommand:
    """What is wrong with a payload, in words."""
    if not payload:
        return CorruptCommand("the record is empty")
    name = TYPE_NAMES.get(payload[0])
    if name is None:
        return CorruptCommand(f"unknown command type {payload[0]}")
    if isinstance(fault, CorruptCommand):
        return CorruptCommand(f"{name}: {fault.reason}")
    if fault is None and end < len(payload):
        return CorruptCommand(f"{name} has {len(payload) - end} bytes too many")
    return CorruptCommand(f"{name} ends too early")


def is_own(payload: bytes) -> bool:
    """Whether a payload is of a type that the Workq server does not know."""
    return payload[:1] >= _FIRST_OWN


def row_ids(payload: bytes) -> tuple[bytes, ...]:
    """The rows a payload names, without decoding more; empty for MARK, QUEUE, SENDER, ENDS."""
    kind = payload[0]
    if kind == 44:
        command = decode(payload)
        assert isinstance(command, Group)
        return tuple(m.id for m in command.members if not isinstance(m, _ROWLESS))
    return () if kind in (45, 46, 49, 50) else (payload[1:17],)


def _put_workq(job: Add | Schedule, zone: int = 0) -> bytes:
    when = encode_time(job.time, zone) if job.time else _NO_TIME + zone.to_bytes(2, "big")
    return b"".join(
        (
            b"\x01" if type(job) is Add else b"\x02",
            job.id,
            blob(job.name),
            uv(job.ttr),
            uv(job.ttl),
            sv(job.priority),
            uv(job.max_attempts),
            uv(job.max_fails),
            blob(job.payload),
            when,
            encode_time(job.created, zone),
        )
    )


def _get_workq(data: bytes) -> tuple[Add | Schedule, int]:
    name, at = get_blob(data, 17)
    ttr, at = get_uv(data, at)
    ttl, at = get_uv(data, at)
    priority, at = get_sv(data, at)
    max_attempts, at = get_uv(data, at)
    max_fails, at = get_uv(data, at)
    payload, at = get_blob(data, at)
    try:
        when = 0 if data.startswith(_NO_TIME, at) else decode_time(data, at)
        created = decode_time(data, at + 15)
    except BrokenRecord as fault:
        raise CorruptCommand(fault.reason) from None
    cls = Add if data[0] == 1 else Schedule
    return cls(
        data[1:17], name, ttr, ttl, priority, max_attempts, max_fails, payload, when, created
    ), at + 30


def _put_complete(command: Complete) -> bytes:
    return b"\x03" + command.id + blob(command.result)


def _put_fail(command: Fail) -> bytes:
    return b"\x04" + command.id + blob(command.result)


def _get_complete(data: bytes) -> tuple[Complete, int]:
    if len(data) == 17:
        return Complete(data[1:]), 17
    result, at = get_blob(data, 17)
    return Complete(data[1:17], result), at


def _get_fail(data: bytes) -> tuple[Fail, int]:
    if len(data) == 17:
        return Fail(data[1:]), 17
    result, at = get_blob(data, 17)
    return Fail(data[1:17], result), at


def _put_lease(command: Lease) -> bytes:
    row, start, until, attempt, worker = command
    return _LEASE.pack(34, row, start, until) + uv(attempt) + blob(worker)


def _get_lease(data: bytes) -> tuple[Lease, int]:
    _, row, start, until = _LEASE.unpack_from(data)
    attempt, at = get_uv(data, 33)
    worker, at = get_blob(data, at)
    return _new(Lease, (row, start, until, attempt, worker)), at


def _put_renew(command: Renew) -> bytes:
    return _INSTANT.pack(35, command.id, command.until) + uv(command.attempt)


def _get_renew(data: bytes) -> tuple[Renew, int]:
    _, row, until = _INSTANT.unpack_from(data)
    attempt, at = get_uv(data, 25)
    return Renew(row, until, attempt), at


def _put_touch(command: Touch) -> bytes:
    return _INSTANT.pack(36, command.id, command.expires)


def _get_touch(data: bytes) -> tuple[Touch, int]:
    return Touch(data[1:17], get_t(data, 17)[0]), 25


def _put_end(number: int) -> Callable[[Any], bytes]:
    start = bytes((number,))

    def put(command: Tomb | Purge) -> bytes:
        row, queue, key, modified = command
        return b"".join((start, row, uv(len(queue)), queue, uv(len(key)), key, T.pack(modified)))

    return put


def _get_end(cls: Any) -> Callable[[bytes], tuple[Command, int]]:
    def get(data: bytes) -> tuple[Command, int]:
        queue, at = get_blob(data, 17)
        key, at = get_blob(data, at)
        modified, at = get_t(data, at)
        return _new(cls, (data[1:17], queue, key, modified)), at

    return get


def _put_dead(command: Dead) -> bytes:
    return _DUE.pack(39, command.id, command.reason, command.when)


def _get_dead(data: bytes) -> tuple[Dead, int]:
    _, row, reason, when = _DUE.unpack_from(data)
    if not 1 <= reason <= 3:
        raise CorruptCommand(f"reason {reason} is not known")
    return Dead(row, reason, when), 26


def _put_keys(command: Keys) -> bytes:
    row, key, aliases, modified = command
    return b"".join((b"\x28", row, blob(key), put_aliases(aliases), T.pack(modified)))


def _get_keys(data: bytes) -> tuple[Keys, int]:
    key, at = get_blob(data, 17)
    aliases, at = get_aliases(data, at)
    modified, at = get_t(data, at)
    return Keys(data[1:17], key, aliases, modified), at


def _put_value(command: Value) -> bytes:
    row, kind, value, modified, operation = command
    return b"".join((b"\x29", row, bytes((kind,)), blob(value), T.pack(modified), blob(operation)))


def _get_value(data: bytes) -> tuple[Value, int]:
    value, at = get_blob(data, 18)
    modified, at = get_t(data, at)
    operation, at = get_blob(data, at)
    return Value(data[1:17], data[17], value, modified, operation), at


def _put_group(command: Group) -> bytes:
    members = [encode(member) for member in command.members]
    return b"".join((b"\x2c", uv(len(members)), *map(blob, members)))


def _get_group(data: bytes) -> tuple[Group, int]:
    count, at = get_uv(data, 1)
    if not count:
        raise CorruptCommand("no members")
    members = []
    for _ in range(count):
        payload, at = get_blob(data, at)
        if at > len(data):
            raise IndexError
        if payload[:1] == b"\x2c":
            raise CorruptCommand("a group inside a group")
        members.append(decode(payload))
    return Group(tuple(members)), at


def _put_mark(command: Mark) -> bytes:
    when, segment, offset, note = command
    return b"".join((b"\x2d", T.pack(when), uv(segment), uv(offset), blob(note)))


def _get_mark(data: bytes) -> tuple[Mark, int]:
    when, at = get_t(data, 1)
    segment, at = get_uv(data, at)
    offset, at = get_uv(data, at)
    note, at = get_blob(data, at)
    return Mark(when, segment, offset, note), at


def _put_retry(command: Retry) -> bytes:
    row, reason, due, timeouts, fails, note = command
    return b"".join((_DUE.pack(47, row, reason, due), uv(timeouts), uv(fails), blob(note)))


def _get_retry(data: bytes) -> tuple[Retry, int]:
    _, row, reason, due = _DUE.unpack_from(data)
    if not 1 <= reason <= 3:
        raise CorruptCommand(f"reason {reason} is not known")
    timeouts, at = get_uv(data, 26)
    fails, at = get_uv(data, at)
    note, at = get_blob(data, at)
    return Retry(row, reason, due, timeouts, fails, note), at


def _put_redrive(command: Redrive) -> bytes:
    return _INSTANT.pack(48, command.id, command.due) + uv(command.max_attempts)


def _get_redrive(data: bytes) -> tuple[Redrive, int]:
    _, row, due = _INSTANT.unpack_from(data)
    max_attempts, at = get_uv(data, 25)
    return Redrive(row, due, max_attempts), at


def _put_sender(command: Sender) -> bytes:
    return b"\x31" + blob(command.name) + T.pack(command.mark)


def _get_sender(data: bytes) -> tuple[Sender, int]:
    name, at = get_blob(data, 1)
    mark, at = get_t(data, at)
    return Sender(name, mark), at


def _put_ends(command: Ends) -> bytes:
    parts = [b"\x32", uv(len(command.ends))]
    for row, end, token in command.ends:
        parts += (row, bytes((end,)), uv(token))
    return b"".join(parts)


def _get_ends(data: bytes) -> tuple[Ends, int]:
    count, at = get_uv(data, 1)
    ends = []
    for _ in range(count):
        row, end = data[at : at + 16], data[at + 16]
        if not end & 7 >= 1 or end > 15:
            raise CorruptCommand(f"end {end} is not known")
        token, at = get_uv(data, at + 17)
        ends.append((row, end, token))
    return Ends(tuple(ends)), at


def _bare(number: int) -> Callable[[Any], bytes]:
    start = bytes((number,))
    return lambda command: start + command.id


def _get_bare(cls: Any) -> Callable[[bytes], tuple[Command, int]]:
    def get(data: bytes) -> tuple[Command, int]:
        return cls(data[1:17]), 17

    return get


_TYPES: tuple[tuple[int, Any, Callable[[Any], bytes], Callable[[bytes], tuple[Command, int]]], ...]
_TYPES = (
    (1, Add, _put_workq, _get_workq),
    (2, Schedule, _put_workq, _get_workq),
    (3, Complete, _put_complete, _get_complete),
    (4, Fail, _put_fail, _get_fail),
    (5, Delete, _bare(5), _get_bare(Delete)),
    (6, Expire, _bare(6), _get_bare(Expire)),
    (7, Start, _bare(7), _get_bare(Start)),
    (8, Timeout, _bare(8), _get_bare(Timeout)),
    (32, Put, put_put, get_put),
    (34, Lease, _put_lease, _get_lease),
    (35, Renew, _put_renew, _get_renew),
    (36, Touch, _put_touch, _get_touch),
    (37, Tomb, _put_end(37), _get_end(Tomb)),
    (38, Purge, _put_end(38), _get_end(Purge)),
    (39, Dead, _put_dead, _get_dead),
    (40, Keys, _put_keys, _get_keys),
    (41, Value, _put_value, _get_value),
    (44, Group, _put_group, _get_group),
    (45, Mark, _put_mark, _get_mark),
    (46, Queue, put_queue, get_queue),
    (47, Retry, _put_retry, _get_retry),
    (48, Redrive, _put_redrive, _get_redrive),
    (49, Sender, _put_sender, _get_sender),
    (50, Ends, _put_ends, _get_ends),
)
_ENCODERS = {cls: put for _, cls, put, _ in _TYPES}
_DECODERS = {number: get for number, _, _, get in _TYPES}
TYPE_OF: dict[type, int] = {cls: number for number, cls, _, _ in _TYPES}
TYPE_NAMES: dict[int, str] = {number: cls.__name__.upper() for number, cls, _, _ in _TYPES}

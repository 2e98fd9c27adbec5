"""A record's payload <-> a command. What commands mean: `commands`.

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
                    that differ from the defaults (numbers: `settings_codec`)
      47  RETRY     id, u8 reason (1 failed, 2 released, 3 timed out), t due, uv timeouts,
                    uv fails, b note
      48  REDRIVE   id, t due, uv max-attempts
      49  SENDER    b name, t mark: all requests of this sender up to mark are in; 0: forget it
      50  ENDS      uv count, then id, u8 end, uv token each: how leases and jobs ended whose own
                    records may be gone (1 done, 2 dead, 3 gone, 4 failed and 5 released for a twin,
                    6 failed and 7 released to wait again; +8: the row was still there)

PUT flags: bit 0 persist, bit 1 keep_versions, bit 2 came through Workq, bit 3 by SCHEDULE,
bits 4-7 version of the payload (setting `schema` when it was put).
33, 42, 43 and 9..31 are reserved; 51 is the next free number.

Rules:

1. `encode(decode(payload)) == payload` for everything we write. Unknown types, bytes that end too
   early, bytes left over: `CorruptCommand`.
2. One table of types, `TYPE_OF`, and of those that name no row, `BROADCAST`; nobody else knows
   their numbers but by the names in `commands`.
3. To change a layout: raise its version byte, keep the old reader under its number, add a golden
   file. A new setting gets the next number; numbers are never used twice.
"""

from typing import Final

from mypy_extensions import i64

from fastjournal.buffers import BytesWriter
from fastjournal.errors import CorruptCommand
from fastjournal.journal.language.commands import (
    ADD,
    COMPLETE,
    DEAD,
    DEFAULT_POLICY,
    DELETE,
    ENDS,
    EXPIRE,
    FAIL,
    GROUP,
    KEYS,
    LEASE,
    MARK,
    PLAIN_END,
    PURGE,
    PUT,
    QUEUE,
    REDRIVE,
    RENEW,
    RETRY,
    SCHEDULE,
    SENDER,
    START,
    TIMEOUT,
    TOMB,
    TOUCH,
    VALUE,
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
    policy_of,
)
from fastjournal.journal.language.settings_codec import SETTING_NUMBERS, read_settings
from fastjournal.journal.language.varint import Reader
from fastjournal.log.record import BrokenRecord, decode_time

__all__ = [
    "BROADCAST",
    "SETTING_NUMBERS",
    "TYPE_NAMES",
    "TYPE_OF",
    "decode",
    "decode_part",
    "encode",
    "is_own",
    "row_ids",
    "write_command",
]

_FIRST_OWN: Final = bytes((PUT,))
_GROUP: Final = bytes((GROUP,))
_NO_TIME: Final = bytes((1,)) + bytes(12)

TYPE_OF: Final[dict[type, int]] = {
    Add: ADD,
    Schedule: SCHEDULE,
    Complete: COMPLETE,
    Fail: FAIL,
    Delete: DELETE,
    Expire: EXPIRE,
    Start: START,
    Timeout: TIMEOUT,
    Put: PUT,
    Lease: LEASE,
    Renew: RENEW,
    Touch: TOUCH,
    Tomb: TOMB,
    Purge: PURGE,
    Dead: DEAD,
    Keys: KEYS,
    Value: VALUE,
    Group: GROUP,
    Mark: MARK,
    Queue: QUEUE,
    Retry: RETRY,
    Redrive: REDRIVE,
    Sender: SENDER,
    Ends: ENDS,
}
TYPE_NAMES: Final[dict[int, str]] = {
    number: command.__name__.upper() for command, number in TYPE_OF.items()
}
BROADCAST: Final[frozenset[int]] = frozenset((GROUP, MARK, QUEUE, SENDER, ENDS))
"""Types that name no single row: the 16 bytes after the type byte are not an id."""


def encode(command: Command, zone: int = 0) -> bytes:
    """The payload of a command.

    `zone` are the two zone bytes of Workq times: 0 as documented, 0xFFFF as the real server writes.
    """
    out = BytesWriter()
    write_command(out, command, zone)
    return out.getvalue()


def write_command(out: BytesWriter, command: Command, zone: i64) -> None:
    """The same into a buffer."""
    if zone and isinstance(command, Add):
        command.write_job(out, ADD, zone)
    elif zone and isinstance(command, Schedule):
        command.write_job(out, SCHEDULE, zone)
    else:
        command.write(out)


def decode(payload: bytes) -> Command:
    """The command of a payload; `CorruptCommand` if there is none."""
    return decode_part(payload, 0, len(payload))


def decode_part(data: bytes, start: i64, stop: i64) -> Command:
    """The same for a payload that is a part of something larger."""
    reader = Reader(data, start, stop)
    try:
        command = read_command(reader)
    except IndexError:
        raise _corrupt(data[start:stop], " ends too early") from None
    except CorruptCommand as fault:
        raise _corrupt(data[start:stop], f": {fault.reason}") from None
    if reader.at != stop:
        raise _corrupt(data[start:stop], f" has {stop - reader.at} bytes too many")
    return command


def is_own(payload: bytes) -> bool:
    """Whether a payload is of a type that the Workq server does not know."""
    return payload[:1] >= _FIRST_OWN


def row_ids(payload: bytes) -> tuple[bytes, ...]:
    """The rows a payload names, without decoding more; empty for MARK, QUEUE, SENDER, ENDS."""
    kind: i64 = payload[0]
    if kind == GROUP:
        command = decode(payload)
        assert isinstance(command, Group)
        return tuple([member.id for member in command.members if member.id])
    return () if kind in BROADCAST else (payload[1:17],)


def read_command(reader: Reader) -> Command:
    """The command that stands here, type byte first."""
    kind = reader.byte()
    if kind == PUT:
        return _read_put(reader)
    if kind == LEASE:
        row = reader.raw(16)
        start = reader.t()
        until = reader.t()
        attempt = reader.uv()
        return Lease(row, start, until, attempt, reader.blob())
    if kind == PURGE:
        row = reader.raw(16)
        queue = reader.blob()
        key = reader.blob()
        return Purge(row, queue, key, reader.t())
    return _read_rarer(kind, reader)


def _read_put(reader: Reader) -> Put:
    row = reader.raw(16)
    version = reader.byte()
    if version != 1:
        raise CorruptCommand(f"image version {version} is not known")
    queue = reader.blob()
    key = reader.blob()
    aliases = _read_aliases(reader)
    rank = reader.sv()
    due = reader.t()
    inserted = reader.t()
    modified = reader.t()
    expires = reader.t()
    ttl = reader.uv()
    kind = reader.byte()
    value = reader.blob()
    if not ttl and reader.ahead() == PLAIN_END:
        reader.at += 8
        return Put(
            row, queue, key, rank, due, inserted, modified, expires, kind, value,
            DEFAULT_POLICY, 0, 0, 0, aliases,
        )  # fmt: skip
    flags = reader.byte()
    lease = reader.uv()
    attempts = reader.uv()
    timeouts = reader.uv()
    fails = reader.uv()
    max_attempts = reader.uv()
    max_timeouts = reader.uv()
    max_fails = reader.uv()
    policy = policy_of(flags, ttl, lease, max_attempts, max_timeouts, max_fails)
    return Put(
        row, queue, key, rank, due, inserted, modified, expires, kind, value,
        policy, attempts, timeouts, fails, aliases,
    )  # fmt: skip


def _read_rarer(kind: i64, reader: Reader) -> Command:
    if kind == MARK:
        when = reader.t()
        segment = reader.uv()
        offset = reader.uv()
        return Mark(when, segment, offset, reader.blob())
    if kind == GROUP:
        return _read_group(reader)
    if kind == QUEUE:
        queue = reader.blob()
        return Queue(queue, read_settings(reader))
    if kind == SENDER:
        name = reader.blob()
        return Sender(name, reader.t())
    if kind == ENDS:
        return _read_ends(reader)
    if kind not in TYPE_NAMES:
        raise CorruptCommand("unknown command type")
    row = reader.raw(16)
    if kind == COMPLETE:
        return Complete(row, _read_result(reader))
    if kind == FAIL:
        return Fail(row, _read_result(reader))
    if kind == RETRY:
        reason = _read_reason(reader)
        due = reader.t()
        timeouts = reader.uv()
        fails = reader.uv()
        return Retry(row, reason, due, timeouts, fails, reader.blob())
    if kind == RENEW:
        until = reader.t()
        return Renew(row, until, reader.uv())
    if kind == TIMEOUT:
        return Timeout(row)
    if kind == TOUCH:
        return Touch(row, reader.t())
    if kind == EXPIRE:
        return Expire(row)
    if kind == DELETE:
        return Delete(row)
    if kind == START:
        return Start(row)
    if kind == DEAD:
        reason = _read_reason(reader)
        return Dead(row, reason, reader.t())
    if kind == TOMB:
        queue = reader.blob()
        key = reader.blob()
        return Tomb(row, queue, key, reader.t())
    if kind == VALUE:
        sort = reader.byte()
        value = reader.blob()
        modified = reader.t()
        return Value(row, sort, value, modified, reader.blob())
    if kind == KEYS:
        key = reader.blob()
        aliases = _read_aliases(reader)
        return Keys(row, key, aliases, reader.t())
    if kind == REDRIVE:
        due = reader.t()
        return Redrive(row, due, reader.uv())
    return _read_workq(kind, row, reader)


def _read_workq(kind: i64, row: bytes, reader: Reader) -> Command:
    name = reader.blob()
    ttr = reader.uv()
    ttl = reader.uv()
    priority = reader.sv()
    max_attempts = reader.uv()
    max_fails = reader.uv()
    payload = reader.blob()
    when = reader.raw(15)
    created = reader.raw(15)
    try:
        time = 0 if when.startswith(_NO_TIME) else decode_time(when)
        made = decode_time(created)
    except BrokenRecord as fault:
        raise CorruptCommand(fault.reason) from None
    if kind == ADD:
        return Add(row, name, ttr, ttl, priority, max_attempts, max_fails, payload, time, made)
    return Schedule(row, name, ttr, ttl, priority, max_attempts, max_fails, payload, time, made)


def _read_group(reader: Reader) -> Group:
    count = reader.uv()
    if not count:
        raise CorruptCommand("no members")
    members: list[Command] = []
    for _ in range(count):
        payload = reader.blob()
        if payload[:1] == _GROUP:
            raise CorruptCommand("a group inside a group")
        members.append(decode(payload))
    return Group(tuple(members))


def _read_ends(reader: Reader) -> Ends:
    ends: list[tuple[bytes, int, int]] = []
    for _ in range(reader.uv()):
        row = reader.raw(16)
        end = reader.byte()
        if not end & 7 or end > 15:
            raise CorruptCommand(f"end {end} is not known")
        ends.append((row, int(end), int(reader.uv())))
    return Ends(tuple(ends))


def _read_aliases(reader: Reader) -> tuple[bytes, ...]:
    count = reader.uv()
    if not count:
        return ()
    return tuple([reader.blob() for _ in range(count)])


def _read_result(reader: Reader) -> bytes:
    return b"" if reader.at == reader.end else reader.blob()


def _read_reason(reader: Reader) -> i64:
    reason = reader.byte()
    if not 1 <= reason <= 3:
        raise CorruptCommand(f"reason {reason} is not known")
    return reason


def _corrupt(payload: bytes, reason: str) -> CorruptCommand:
    """What is wrong with a payload, in words."""
    if not payload:
        return CorruptCommand("the record is empty")
    name = TYPE_NAMES.get(payload[0])
    return CorruptCommand(f"unknown command type {payload[0]}" if name is None else name + reason)

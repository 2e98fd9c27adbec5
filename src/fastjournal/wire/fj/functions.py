"""The functions of the FJ protocol: numbers, flag bits, value types, and what each function takes.

Rules:

1. `FUNCTIONS` is the only list. The parser, the roles of the daemon and the tables of the docs
   are made from it; a function that is not in it is answered BAD-FUNCTION.
2. Bits 0-3, 7-8 and 13 decide where fields stand, whatever the function; so a message of an
   unknown function can be skipped and the connection goes on.
3. Numbers 0-4 and bits 0-12 are the documented protocol. 5-19 and bits 13 and 14 extend it; numbers
   from 32 are for bulk work and administration. Bit 15 is never set.
4. Bits 7-8 = 1 in a function that changes entries: the upper key says who asks (`entry_codec`).

To add a function: give it the next free number, add its row here, describe its value in the
module that codes it, add a golden message, and run the docs test.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

__all__ = [
    "AGAIN",
    "ALWAYS_ALLOWED",
    "BY_ID",
    "DATA",
    "EXACT",
    "EXTENDED",
    "FUNCTIONS",
    "GONE",
    "JOBS",
    "KEPT",
    "KEY_SIZE",
    "LENGTH",
    "LISTEN",
    "LOCKED",
    "OVERWRITE",
    "PERSIST",
    "PERSIST_SET",
    "PUSH",
    "QUERY_BITS",
    "QUERY_SHIFT",
    "STABLE",
    "STALE",
    "TIMEOUT",
    "TTL",
    "VALUE_BITS",
    "VALUE_SHIFT",
    "WORKED_ON",
    "Function",
    "Key",
    "Query",
    "Role",
    "Spec",
    "Type",
]

KEY_SIZE: Final = 1 << 0
VALUE_SHIFT: Final = 1
VALUE_BITS: Final = 3 << VALUE_SHIFT
TIMEOUT: Final = 1 << 3
QUERY_SHIFT: Final = 7
QUERY_BITS: Final = 3 << QUERY_SHIFT
TTL: Final = 1 << 13
LENGTH: Final = 1 << 14
"""Of a request with bit 3: the timeout is a length of time, counted from the server's now."""

# Requests.
EXACT: Final = 1 << 4
AGAIN: Final = 1 << 4
"""Of DONE, SETTLE, PUTS and of a SET of a job: sent before, but no answer came."""
OVERWRITE: Final = 1 << 5
JOBS: Final = 1 << 6
"""Of a DELETE that names no queue: the jobs of the key in all queues, not its entry."""
KEPT: Final = 1 << 6
"""Of SET and ADD of an entry: it persists, and is answered as the sync policy promises."""
PERSIST: Final = 1 << 9
LISTEN: Final = 1 << 11
PERSIST_SET: Final = 1 << 12
BY_ID: Final = TTL
EXTENDED: Final = TTL

# Both ways.
WORKED_ON: Final = 1 << 6
DATA: Final = 1 << 10

# Replies.
STALE: Final = 1 << 4
LOCKED: Final = 1 << 5
STABLE: Final = 1 << 9
PUSH: Final = 1 << 11
GONE: Final = 1 << 12

ALWAYS_ALLOWED: Final = KEY_SIZE | VALUE_BITS


class Type(IntEnum):
    """What a value is; one byte in front of it."""

    VOID = 0
    BUFFER = 1
    STRING = 2
    INTEGER = 3
    FLOAT = 4
    BOOLEAN = 5
    JOB = 6


class Query(IntEnum):
    """Bits 7-8 of a request: what the key is."""

    KEY = 0
    RANGE = 1
    PATTERN = 2
    CURSOR = 3


class Function(IntEnum):
    """The number of a request."""

    NOP = 0
    QUIT = 1
    SET = 2
    GET = 3
    DELETE = 4
    ADD = 5
    NOT = 6
    TRUNCATE = 7
    LOCK = 8
    UNLOCK = 9
    RENAME = 10
    NEXT = 11
    DONE = 12
    FAIL = 13
    PING = 14
    LISTEN = 15
    UNLISTEN = 16
    ALIAS = 17
    HELLO = 18
    STATUS = 19
    PUTS = 32
    LEASE = 33
    SETTLE = 34
    TOUCH = 35
    RELEASE = 36
    RESULT = 37
    FORWARD = 38
    QUEUE = 40
    PAUSE = 41
    RESUME = 42
    REDRIVE = 43
    INSPECT = 44
    LIST = 45
    MAINTAIN = 46


class Key(StrEnum):
    """Whether a function takes a key."""

    NONE = "none"
    NEEDED = "needed"
    OPTIONAL = "optional"
    UNLESS_JOB = "needed, except for type 6"


class Role(StrEnum):
    """What a connection must be allowed to do before it may call a function."""

    ANYONE = "anyone"
    PRODUCE = "produce"
    CONSUME = "consume"
    EITHER = "produce or consume"
    ADMIN = "admin"


class Spec(NamedTuple):
    """One row of the table of functions."""

    function: Function
    role: Role
    key: Key
    key_is: str
    types: frozenset[int] | None
    """Types a value may have; None = any type, empty = no value."""
    value_needed: bool
    value_is: str
    bits: int
    """Bits allowed besides 0-2."""
    bits_are: str
    does: str
    bulk: bool = False
    """The value may fill a whole message instead of `max_value`."""


_NO_VALUE: frozenset[int] = frozenset()
_NUMBER = frozenset({Type.INTEGER, Type.FLOAT})
_INTEGER = frozenset({Type.INTEGER})
_BUFFER = frozenset({Type.BUFFER, Type.STRING, Type.VOID})
_TEXT = frozenset({Type.STRING})


def _rows() -> list[Spec]:
    f, r, k = Function, Role, Key
    none, needed, optional = k.NONE, k.NEEDED, k.OPTIONAL
    by_id = "13 the key is a 16-byte id, the ttl field its token"
    who = "7-8 = 1 the upper key says who"
    return [
        Spec(f.NOP, r.ANYONE, none, "", _NO_VALUE, False, "", 0, "",
             "Does nothing, answered with an empty success."),
        Spec(f.QUIT, r.ANYONE, none, "", _NO_VALUE, False, "", 0, "",
             "Ends the connection after everything before it was answered."),
        Spec(f.SET, r.PRODUCE, k.UNLESS_JOB, "key; may be empty for type 6", None, True,
             "entry of any type, or a job (type 6)",
             TIMEOUT | EXACT | OVERWRITE | KEPT | QUERY_BITS | PERSIST | PERSIST_SET | LISTEN | TTL
             | LENGTH,
             "3 expiry, 4 set expiry exactly (jobs: sent again), 5 overwrite, 6 kept (entries), "
             "9 or 12 persist, "
             "11 listen, 13 ttl, 14 the expiry is a length, "
             f"{who} (entries)",
             "Stores an entry, or puts a job."),
        Spec(f.GET, r.EITHER, optional, "key, range, pattern or cursor", _TEXT, False,
             "worker of the lease, instead of the name of HELLO",
             TIMEOUT | EXACT | WORKED_ON | QUERY_BITS | DATA | TTL | LENGTH,
             "3 lease, 3+4 expiry, 4 touch, 6 skip worked on, 7-8 query, 10 data, "
             "13 tell expiry (ttl field 0) or all of an entry (1), 14 the lease is a length",
             "Reads one entry or job, or several entries."),
        Spec(f.DELETE, r.EITHER, needed, "key", _TEXT, False,
             "queue; empty: the entry alone; without it the entry and every queue",
             OVERWRITE | JOBS | QUERY_BITS | PERSIST | BY_ID,
             "5 purge, 6 every queue and not the entry (without a value), 9 persist, "
             f"{who} (entries), {by_id}",
             "Deletes an entry or a job (consume); a missing one is a success."),
        Spec(f.ADD, r.PRODUCE, needed, "key", _NUMBER, True, "number to add",
             KEPT | QUERY_BITS | PERSIST, f"6 kept, 9 persist, {who}", "Adds to a number."),
        Spec(f.NOT, r.PRODUCE, needed, "key", _NO_VALUE, False, "",
             QUERY_BITS | PERSIST, f"9 persist, {who}", "Flips a boolean."),
        Spec(f.TRUNCATE, r.PRODUCE, needed, "key", _INTEGER, True, "new size",
             QUERY_BITS | PERSIST, f"9 persist, {who}",
             "Cuts a value, or extends it with zero bytes."),
        Spec(f.LOCK, r.PRODUCE, needed, "key", _NO_VALUE, False, "",
             TIMEOUT | QUERY_BITS | LENGTH, f"3 deadline, 14 it is a length, {who}",
             "Locks a key for this client."),
        Spec(f.UNLOCK, r.PRODUCE, needed, "key", _NO_VALUE, False, "", QUERY_BITS, who,
             "Frees a lock."),
        Spec(f.RENAME, r.PRODUCE, needed, "old key", _BUFFER, True, "new key",
             OVERWRITE | QUERY_BITS | PERSIST, f"5 overwrite, 9 persist, {who}",
             "Renames a key in one step."),
        Spec(f.NEXT, r.CONSUME, optional, "queue, or empty for any", _INTEGER, False,
             "time to wait, ms", TIMEOUT | OVERWRITE | DATA | EXTENDED | LENGTH,
             "3 lease deadline, 5 take and delete, 10 data, "
             "13 answer with type 6 layout 3 (ttl field 0), 14 the deadline is a length",
             "Leases the next job."),
        Spec(f.DONE, r.CONSUME, needed, "key, or id with bit 13", _INTEGER | _BUFFER, False,
             "integer: token; with bit 13 buffer: result", AGAIN | PERSIST | BY_ID,
             f"4 sent again, 9 persist, {by_id}", "Completes a leased job."),
        Spec(f.FAIL, r.CONSUME, needed, "key, or id with bit 13", _BUFFER, False,
             "buffer: result", PERSIST | BY_ID, f"9 persist, {by_id}",
             "Fails a leased job: it is tried again, or is dead."),
        Spec(f.PING, r.ANYONE, none, "", _NO_VALUE, False, "", 0, "",
             "Answered at once; tells the server's time."),
        Spec(f.LISTEN, r.EITHER, optional, "key, or queue with bit 6", _NO_VALUE, False, "",
             WORKED_ON | QUERY_BITS, "6 queue, 7-8 = 1 range", "Subscribes to pushes."),
        Spec(f.UNLISTEN, r.EITHER, optional, "key, or queue with bit 6", _NO_VALUE, False, "",
             WORKED_ON | QUERY_BITS, "6 queue, 7-8 = 1 range", "Ends a subscription."),
        Spec(f.ALIAS, r.PRODUCE, needed, "key", _BUFFER, True, "further key",
             QUERY_BITS | PERSIST, f"9 persist, {who}", "Gives an entry one more key."),
        Spec(f.HELLO, r.ANYONE, optional, "client name", _BUFFER, False, "capabilities", 0, "",
             "Names the client, shows its token, chooses the journal."),
        Spec(f.STATUS, r.EITHER, none, "", _NO_VALUE, False, "", 0, "",
             "Figures of the journal and the server."),
        Spec(f.PUTS, r.PRODUCE, none, "", _BUFFER, True, "jobs", AGAIN | PERSIST,
             "4 sent again, 9 persist",
             "Puts many jobs; one outcome each.", True),
        Spec(f.LEASE, r.CONSUME, none, "", _BUFFER, True, "what to lease", 0, "",
             "Leases up to n jobs; one pair each."),
        Spec(f.SETTLE, r.CONSUME, none, "", _BUFFER, True, "leases to settle", AGAIN | PERSIST,
             "4 sent again, 9 persist",
             "Completes, fails, releases or touches many leases; one outcome each.",
             True),
        Spec(f.TOUCH, r.CONSUME, needed, "key, or id with bit 13", _INTEGER, False,
             "lease length from now, ms", TIMEOUT | BY_ID, f"3 deadline, {by_id}",
             "Extends a lease."),
        Spec(f.RELEASE, r.CONSUME, needed, "key, or id with bit 13", _INTEGER, False,
             "delay until due again, ms", PERSIST | BY_ID, f"9 persist, {by_id}",
             "Gives a leased job back undone."),
        Spec(f.RESULT, r.EITHER, needed, "key, or id with bit 13", _INTEGER, False,
             "time to wait, ms", BY_ID, by_id, "Waits for the result of a job."),
        Spec(f.FORWARD, r.PRODUCE, needed, "sender", _BUFFER, True, "marks and jobs", PERSIST,
             "9 persist", "Puts the jobs of a spool, each once; tells how far it came.", True),
        Spec(f.QUEUE, r.ADMIN, needed, "queue", _TEXT, False, "JSON object of settings to change",
             PERSIST, "9 persist", "Changes and tells the settings of a queue."),
        Spec(f.PAUSE, r.ADMIN, needed, "queue", _TEXT, False,
             '"pause" (default), "drain" or "both"', PERSIST, "9 persist",
             "Stops handing out (pause), taking in (drain), or both."),
        Spec(f.RESUME, r.ADMIN, needed, "queue", _NO_VALUE, False, "", PERSIST, "9 persist",
             "Ends pause and drain."),
        Spec(f.REDRIVE, r.ADMIN, optional, "queue, empty for all, or id with bit 13", _INTEGER,
             False, "most jobs to bring back", PERSIST | BY_ID, f"9 persist, {by_id}",
             "Brings dead jobs back to their queues."),
        Spec(f.INSPECT, r.EITHER, optional, "name; id with bit 13", _TEXT, True,
             '"job", "job QUEUE", "queue", "queues", "entries", "journal" or "server"', BY_ID,
             by_id, "Tells all about one thing, as JSON."),
        Spec(f.LIST, r.EITHER, optional, "queue, empty for all; or cursor", _TEXT, False,
             "JSON object: state, prefix, limit, offset, values", QUERY_BITS, "7-8 = 3 cursor",
             "Lists jobs, as JSON, a page at a time."),
        Spec(f.MAINTAIN, r.ADMIN, none, "", _TEXT, True,
             '"sync", "rotate", "snapshot" or "clean"', 0, "", "Runs upkeep now."),
    ]  # fmt: skip


FUNCTIONS: dict[int, Spec] = {int(row.function): row for row in _rows()}

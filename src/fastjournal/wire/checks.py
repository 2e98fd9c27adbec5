"""What is wrong with a well-framed request.

Rules:

1. The table of `functions` says what a function takes; what a mask of bits cannot tell stands here.
2. Nothing here looks inside a value.
"""

from __future__ import annotations

from collections.abc import Callable

from fastjournal.errors import BadFlags, BadFunction, BadRequest, RequestError, WrongType
from fastjournal.wire.functions import (
    ALWAYS_ALLOWED,
    BY_ID,
    FUNCTIONS,
    JOBS,
    LENGTH,
    QUERY_BITS,
    QUERY_SHIFT,
    TIMEOUT,
    WORKED_ON,
    Function,
    Key,
    Query,
    Type,
)

__all__ = ["check"]


def check(
    function: int, flags: int, key: bytes, value_type: int | None, ttl: int | None
) -> RequestError | None:
    """Say what is wrong with a well-framed request; None = nothing."""
    rule = _RULES.get(function)
    if rule is None:
        return BadFunction(f"{function} is unknown")
    forbidden, value_rule, types, key_rule, also = rule
    if flags & forbidden:
        return BadFlags(f"{Function(function).name} does not take bits {_bits(flags & forbidden)}")
    if flags & (LENGTH | TIMEOUT) == LENGTH:
        return BadFlags("bit 14 says what the field of bit 3 is, which is not there")
    if value_type is None:
        if value_rule == _MUST:
            return BadFlags(f"{Function(function).name} needs a value")
    elif value_rule == _NEVER:
        return BadFlags(f"{Function(function).name} takes no value")
    elif types is not None and value_type not in types:
        return WrongType(f"{Function(function).name} does not take a value of type {value_type}")
    if key:
        if key_rule == _NEVER:
            return BadRequest(f"{Function(function).name} takes no key")
    elif key_rule == _MUST or (key_rule == _UNLESS_JOB and value_type != _JOB):
        return BadRequest(f"{Function(function).name} needs a key")
    return None if also is None else also(flags, key, value_type, ttl)


def _bits(flags: int) -> str:
    return ", ".join(str(bit) for bit in range(16) if flags >> bit & 1)


# The combinations that a mask cannot tell, by function.
_Also = Callable[[int, bytes, int | None, int | None], RequestError | None]


def _also_get(flags: int, key: bytes, _: int | None, ttl: int | None) -> RequestError | None:
    if not key and (flags & QUERY_BITS) >> QUERY_SHIFT != Query.RANGE:
        return BadRequest("GET needs a key")
    return BadFlags("the ttl field must be 0 or 1 here") if ttl and ttl > 1 else None


def _also_next(_: int, __: bytes, ___: int | None, ttl: int | None) -> RequestError | None:
    return BadFlags("the ttl field must be 0 here") if ttl else None


def _also_listen(flags: int, _: bytes, __: int | None, ___: int | None) -> RequestError | None:
    query = (flags & QUERY_BITS) >> QUERY_SHIFT
    if query > Query.RANGE or (query and flags & WORKED_ON):
        return BadFlags("LISTEN takes a key, a range of keys, or one queue")
    return None


def _also_who(flags: int, key: bytes, value_type: int | None, _: int | None) -> RequestError | None:
    query = (flags & QUERY_BITS) >> QUERY_SHIFT
    if query > Query.RANGE or (query and value_type == _JOB):
        return BadFlags("bits 7-8 of a change of an entry are 0, or 1: who makes it")
    return None


def _also_delete(
    flags: int, key: bytes, value_type: int | None, ttl: int | None
) -> RequestError | None:
    if flags & BY_ID and flags & QUERY_BITS:
        return BadFlags("a job has no fencing number")
    if flags & JOBS and (flags & (BY_ID | QUERY_BITS) or value_type is not None):
        return BadFlags("bit 6 means the jobs of a key in every queue")
    return _also_who(flags, key, None, ttl) or _also_by_id(flags, key, value_type, ttl)


def _also_list(flags: int, _: bytes, __: int | None, ___: int | None) -> RequestError | None:
    query = (flags & QUERY_BITS) >> QUERY_SHIFT
    return None if query in (Query.KEY, Query.CURSOR) else BadFlags("LIST takes no such query")


def _also_by_id(flags: int, key: bytes, _: int | None, __: int | None) -> RequestError | None:
    return BadRequest("an id has 16 bytes") if flags & BY_ID and len(key) != 16 else None


def _also_done(
    flags: int, key: bytes, value_type: int | None, ttl: int | None
) -> RequestError | None:
    if flags & BY_ID:
        if value_type == Type.INTEGER:
            return WrongType("with bit 13 the value of DONE is the result")
    elif value_type not in (None, Type.INTEGER):
        return WrongType("the value of DONE is a token; send a result with bit 13")
    return _also_by_id(flags, key, value_type, ttl)


_ALSO: dict[Function, _Also] = {
    Function.GET: _also_get,
    Function.SET: _also_who,
    Function.ADD: _also_who,
    Function.NOT: _also_who,
    Function.TRUNCATE: _also_who,
    Function.LOCK: _also_who,
    Function.UNLOCK: _also_who,
    Function.RENAME: _also_who,
    Function.ALIAS: _also_who,
    Function.NEXT: _also_next,
    Function.DONE: _also_done,
    Function.LISTEN: _also_listen,
    Function.UNLISTEN: _also_listen,
    Function.LIST: _also_list,
    Function.DELETE: _also_delete,
    Function.FAIL: _also_by_id,
    Function.TOUCH: _also_by_id,
    Function.RELEASE: _also_by_id,
    Function.RESULT: _also_by_id,
    Function.REDRIVE: _also_by_id,
    Function.INSPECT: _also_by_id,
}
_NEVER, _MAY, _MUST, _UNLESS_JOB = 0, 1, 2, 3
_KEY_RULE = {
    Key.NONE: _NEVER,
    Key.OPTIONAL: _MAY,
    Key.NEEDED: _MUST,
    Key.UNLESS_JOB: _UNLESS_JOB,
}
_JOB = int(Type.JOB)
# Per function: forbidden bits, value rule, value types, key rule, further check.
_RULES: dict[int, tuple[int, int, frozenset[int] | None, int, _Also | None]] = {
    number: (
        0xFFFF & ~(row.bits | ALWAYS_ALLOWED),
        _MUST if row.value_needed else _NEVER if not (row.types is None or row.types) else _MAY,
        row.types,
        _KEY_RULE[row.key],
        _ALSO.get(row.function),
    )
    for number, row in FUNCTIONS.items()
}
